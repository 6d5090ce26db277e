"""Help texts: quick, complete, and without torch."""

import subprocess
import sys
import time

import pytest

from fedshift.cli import main
from fedshift.cli.options import PROTOCOL, SETUP, flag
from fedshift.cli.parser import COMMANDS


def test_help_answers_at_once_and_without_torch():
    code = (
        "import sys\nfrom fedshift.cli import main\nassert main(['--help']) == 0\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_names_every_option_with_its_meaning_and_bounds(capsys, command):
    main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, hyper in {**PROTOCOL, **SETUP}.items():
        assert flag(name) in text and hyper.meaning.split(":")[0] in text
    assert "0 to 1" in text and "sgd | adam | adamw" in text


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedshift ")
