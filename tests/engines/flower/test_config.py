"""Files of sites and deployments: what they may say, and what is refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
import stat
import subprocess

import pytest

from fedshift.cli import main
from fedshift.engines.flower import deploy, guard
from fedshift.engines.flower.config import Deployment, SiteConfig
from fedshift.engines.flower.secagg.terms import secure_of
from fedshift.errors import FedshiftError

SITE = 'name = "north"\ndata = "shifted-digits"\n'
DEPLOY = 'sites = ["a", "b"]\nmethod = "fedavg"\nmodel = "mlp"\n'
TLS = 'ca = "ca.crt"\ncertificate = "s.crt"\nkey = "s.key"\nkeys = "keys"\n'


@pytest.mark.parametrize(
    "kind, text, complaint",
    [
        (SiteConfig, 'name = "north"', "no name or no data"),
        (
            SiteConfig,
            SITE + 'server = "fl.example.org:8443"',
            "leaves this machine, without TLS",
        ),
        (SiteConfig, SITE + 'server = "127.0.0.1"', "give HOST:PORT"),
        (SiteConfig, SITE + "allow = 3", "allow .* is 3: give"),
        (SiteConfig, SITE + "device = 1", "device .* is 1: give text"),
        (SiteConfig, SITE + 'alow = ["parameters"]', "unknown entry .*alow.*did you mean allow"),
        (Deployment, 'sites = ["a"]\nmethod = "fedavg"', "has no model"),
        (Deployment, DEPLOY + 'address = "0.0.0.0:8443"', "without TLS"),
        (Deployment, DEPLOY + "min_sites = 3", "min_sites .* is 3: give 1 to 2"),
        (Deployment, DEPLOY + 'min_sites = "two"', "give a number"),
        (Deployment, DEPLOY + 'ca = "ca.crt"', "TLS needs all four"),
        (SiteConfig, SITE + "require_secure = 1", "give true or false"),
        (SiteConfig, SITE + 'peers = "nowhere"', "peers .* is no folder"),
        (SiteConfig, SITE + "heartbeat = 5", "heartbeat .* is 5: give whole seconds, 10 to 1800"),
        (SiteConfig, SITE + "heartbeat = 12.5", "heartbeat .* is 12.5: give whole seconds"),
        (SiteConfig, SITE + "pretrained = 1", "give text"),
        (Deployment, DEPLOY + "pretrained = true", "pretrained .* is True: give text"),
        (Deployment, DEPLOY + "secure = true", "write .secure. and below it"),
        (Deployment, DEPLOY + "[secure]\nbitz = 3", "unknown entry of .secure. .*bitz.*bits"),
        (Deployment, DEPLOY + "[secure]\nbits = 60", "secure.bits is 60: allowed is 2 to 52"),
        (Deployment, DEPLOY + "[secure]\nthreshold = 0.3", "secure.threshold is 0.3"),
        (Deployment, DEPLOY + "[secure]\nenabled = 1", "give true or false"),
        (Deployment, 'sites = "a"\nmethod = "fedavg"\nmodel = "mlp"', "give a list of names"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(kind, text, complaint, tmp_path):
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(FedshiftError, match=complaint) as refused:
        kind.read(path)
    assert "\n" not in str(refused.value)


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "north").mkdir()
    path = tmp_path / "north" / "site.toml"
    path.write_text(SITE + 'state = "kept"\nserver = "fl.example.org:8443"\nca = "../ca.crt"\n')
    site = SiteConfig.read(path)
    assert site.path(site.state) == tmp_path / "north" / "kept"
    assert site.path(site.ca) == tmp_path / "ca.crt"


def test_a_python_function_gives_the_data(tmp_path):
    path = tmp_path / "site.toml"
    (tmp_path / "mine.py").write_text("from tests.toys import federation as clinic\nno = 3\n")
    for data, complaint in (("mine.py:no", "no function 'no'"), ("your.py:x", "there is no file")):
        path.write_text(f'name = "a"\ndata = "{data}"\n')
        with pytest.raises(FedshiftError, match=complaint):
            SiteConfig.read(path).federation()
    path.write_text('name = "a"\ndata = "mine.py:clinic"\n')
    assert SiteConfig.read(path).federation().names == ("a", "b", "c")
    path.write_text('name = "a"\ndata = "tests.toys:federation"\n')
    assert SiteConfig.read(path).federation().names == ("a", "b", "c")


def test_secure_aggregation_is_switched_on_by_its_table(tmp_path):
    path = tmp_path / "deploy.toml"
    for text, bits in (
        ("", None),
        ("[secure]\nenabled = true\n", 42),
        ("[secure]\nbits = 30\n", 30),
        ("[secure]\nenabled = false\nbits = 30\n", None),
    ):
        path.write_text(DEPLOY + text)
        told = Deployment.read(deploy.write(Deployment.read(path)))
        secure = secure_of(told.secure, "deploy.toml")
        assert (None if secure is None else secure.bits) == bits


def test_a_resolved_deployment_reads_as_it_was(tmp_path):
    path = tmp_path / "deploy.toml"
    path.write_text(DEPLOY + TLS + "[protocol]\nrounds = 3\n[set]\nmu = 0.5\n")
    told = Deployment.read(path)
    again = Deployment.read(deploy.write(told))
    assert again.folder == told.folder and again.protocol == {"rounds": 3}
    assert again.path(again.keys) == tmp_path / "keys" and again.set == {"mu": 0.5}


def test_site_init_writes_a_file_that_works(tmp_path, capsys):
    path = tmp_path / "scanner" / "site.toml"
    words = ["site", "init", str(path), "--name", "scanner", "--data", "shifted-digits"]
    assert main([*words, "--allow", "parameters", "--allow", "statistics", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["train"] > 0 and len(told["classes"]) == 10
    assert SiteConfig.read(path).allow == ("parameters", "statistics")
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["site", "init", str(tmp_path / "x.toml"), "--name", "nobody"]) == 2
    assert "needs --name and --data" in capsys.readouterr().err


def test_site_init_leaves_no_file_behind_that_does_not_work(tmp_path, capsys):
    path = tmp_path / "site.toml"
    words = ["site", "init", str(path), "--name", "scanner", "--data", str(tmp_path / "nowhere")]
    for _ in range(2):  # the same complaint again, and not that the file is there
        assert main(words) == 2
        assert "nowhere" in capsys.readouterr().err and not path.exists()


def test_site_init_writes_what_a_site_insists_on(tmp_path, capsys):
    path = tmp_path / "site.toml"
    words = ["site", "init", str(path), "--name", "scanner", "--data", "shifted-digits"]
    more = ["--require-secure", "--peers", "peers", "--pretrained", "w.safetensors"]
    assert main([*words, *more]) == 0
    told = SiteConfig.read(path)
    assert told.require_secure is True
    assert told.path(told.peers) == told.identity.peers == tmp_path / "peers"
    assert (tmp_path / "peers").is_dir(), "keys can be put there"
    assert told.path(told.pretrained) == tmp_path / "w.safetensors"
    path.unlink()
    assert main(words) == 0
    plain = SiteConfig.read(path)
    assert (plain.require_secure, plain.peers, plain.pretrained) == (False, "", "")
    capsys.readouterr()


def test_status_of_nothing_and_of_a_dead_run(tmp_path, capsys):
    path = tmp_path / "deploy.toml"
    path.write_text(DEPLOY)
    assert main(["status", str(path)]) == 2
    assert "holds no deployment's run" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = {"state": "running", "method": "fedavg", "pid": dead.pid, "time": 0, "notes": []}
    entry = {
        "stage": "train",
        "round": 1,
        "seconds": 2.0,
        "took_part": ["a"],
        "left_out": {"b": "x"},
    }
    (tmp_path / "run" / "status.json").write_text(json.dumps({**left, "rounds": [entry]}))
    assert main(["status", str(path)]) == 0
    out = capsys.readouterr().out
    assert "fedavg: died: go on with fedshift deploy --resume" in out
    assert "round 1 of 'train': a (2.0 s); not b (x)" in out


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_it_says_what_to_install(tmp_path, capsys):
    (tmp_path / "deploy.toml").write_text(DEPLOY)
    (tmp_path / "site.toml").write_text(SITE)
    for words in (
        ["deploy", str(tmp_path / "deploy.toml")],
        ["site", "run", str(tmp_path / "site.toml")],
        ["certs", str(tmp_path / "certs"), "--host", "127.0.0.1"],
        ["run", "fedavg", "--engine", "flower", "--out", str(tmp_path / "out")],
    ):
        assert main(words) == 2
        assert "pip install 'fedshift[flower]'" in capsys.readouterr().err


def test_machines_run_what_is_installed_and_refuse_other_tasks(tmp_path):
    guard.shims(tmp_path, "site")
    for program in guard.PROGRAMS:
        path = tmp_path / program
        assert path.stat().st_mode & stat.S_IXUSR
        if program == "flwr-clientapp":
            assert "fedshift.engines.flower.guard site" in path.read_text()
        else:
            done = subprocess.run([path], capture_output=True, text=True)
            assert done.returncode == 1 and "runs no tasks of this kind" in done.stderr


def test_a_flower_that_loads_code_in_another_way_is_refused():
    with pytest.raises(SystemExit, match=r"no json\.load_app: install a tested one"):
        guard.replace("json", "load_app", None)


def test_keys_are_for_their_owner_alone_and_stay(tmp_path):
    pytest.importorskip("cryptography", reason="comes with the extra 'flower'")
    from fedshift.engines.flower import certs

    made = certs.make(tmp_path, ["north"], ["127.0.0.1", "fl.example.org"])
    secret = {p.name for p in made if p.suffix == ".key"}
    assert secret == {"ca.key", "server.key", "north.key"}
    assert all((tmp_path / n).stat().st_mode & 0o077 == 0 for n in secret)
    before = (tmp_path / "north.key").read_bytes()
    more = certs.make(tmp_path, ["north", "south"], ["127.0.0.1"])
    assert [p.name for p in more] == ["south.key", "south.pub"]
    assert (tmp_path / "north.key").read_bytes() == before
