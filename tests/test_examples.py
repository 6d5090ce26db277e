"""Every example runs as a script, and every command that its docstring shows does too."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift as fs
from fedshift import cli, methods
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference

HOME = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(p for p in HOME.glob("*.py"))
SHOWS = {
    "own_method": ["mine on shifted-digits", "fedavg on shifted-digits"],
    "own_data": ["fedavg on hospitals", "north"],
    "own_model": ["fedbn on shifted-digits", "each client's own model"],
}


def commands(path: Path) -> list[list[str]]:
    """The commands that a docstring shows, in order."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = [line.partition("#")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("python ", "fedshift "))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A folder that sees the examples and nothing else of the repository."""
    (tmp_path / "examples").symlink_to(HOME, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_as_scripts_and_on_the_command_line(path, here, capfd):
    shown = commands(path)
    assert shown[0] == ["python", f"examples/{path.name}"]
    assert any(command[0] == "fedshift" for command in shown)
    for program, *rest in shown:
        if program == "python":
            one = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, *rest], capture_output=True, text=True, env=one, timeout=300
            )
            assert done.returncode == 0, done.stderr
            if len(rest) == 1:
                assert all(text in done.stdout for text in SHOWS[path.stem]), done.stdout
                assert "warning" not in done.stderr.lower(), done.stderr
            continue
        # as shown, but for the time it takes
        quick = ["--rounds", "1", "--steps", "1", "--device", "cpu", "--workers", "1"]
        assert cli.main([*rest, *quick]) == 0, capfd.readouterr().err
    saved = list((here / "runs").glob("*/model.safetensors"))
    assert len(saved) == sum(program == "fedshift" for program, *_ in shown)


def test_the_own_method_from_its_file_as_its_docs_say(here):
    """In a process of its own, the command that readers try first."""
    rest = "run examples/own_method.py:Mine --data shifted-digits --rounds 2 "
    rest += "--epochs 1 --model mlp --device cpu"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from fedshift.cli import main; sys.exit(main())",
            *rest.split(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "mine on shifted-digits" in done.stdout
    assert (here / "runs" / "mine-shifted-digits-seed0" / "model.safetensors").is_file()


def mine(**settings) -> fs.Method:
    return methods.method_class(f"{HOME}/own_method.py:Mine")(**settings)


@pytest.mark.parametrize("beside", [None, "fedbn", "mixup"])
def test_the_own_method_is_the_same_on_both_engines(beside):
    made = mine() if beside is None else methods.make(beside) + mine()
    loop, stacked = (start(made, engine=e).play() for e in ("loop", "stacked"))
    assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    assert set(loop.lines[-1]["loss"]) == {"task", "distil"}


def test_the_own_method_does_what_it_says():
    """Switched off it is FedAvg; half way is the middle of before and FedAvg's mean."""
    once = PROTOCOL.replace(rounds=1)
    fedavg, off, half = (
        start(m, once).play().progress.server.model
        for m in (fs.methods.FedAvg(), mine(pull=0, slow=1), mine(pull=0, slow=0.5))
    )
    assert largest_difference(fedavg, off) < 1e-12
    before = start("fedavg", once).progress.server.model
    for name, t in half.items():
        middle = (before[name] + fedavg[name]) / 2 if t.is_floating_point() else fedavg[name]
        assert (t - middle).abs().max() < 1e-12, name
    # the first step's teacher is the student: only later terms pull
    pulled = start(mine(pull=5, slow=1), once).play().progress.server.model
    assert largest_difference(fedavg, pulled) > 1e-4


def test_the_own_networks_say_or_are_told_their_stages():
    from fedshift.models import ModelSpec

    spec = ModelSpec.of(f"{HOME}/own_model.py:Net")
    model = spec.build((1, 16, 16), 10, 0)
    assert model.stages == ("conv1", "conv2") and spec.rebuildable
    plain = ModelSpec.of(f"{HOME}/own_model.py:Plain", stages=("conv1", "conv2"), head="fc")
    assert plain.build((3, 20, 20), 4, 0).stages == ("body.conv1", "body.conv2")
