"""A run that was interrupted ends like one that was not, and says clearly what went wrong.

Kills, Ctrl-C and full disks at counted moments are played by `tests/drivers/interrupting.py`, which
forks once for each; accidents of worker processes by `tests/drivers/working.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save_file

import fedshift as fs
from fedshift import checkpoint, files
from fedshift.errors import BadRun
from fedshift.kept import Kept
from fedshift.method import Method, State
from fedshift.run import Interrupted, Run
from fedshift.trip import Trip
from tests.drivers import toy_run
from tests.methods.test_battery import start
from tests.toys import ToyNet, federation

ROOT = Path(__file__).parent.parent
WAYS = {"loop": ("moments", "saving", "interrupting", "full_disk"), "stacked": ("moments",)}
LEAST = {"moments": 20, "saving": 50, "interrupting": 30, "full_disk": 20}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """Both engines' drivers, at work at the same time; each answers once."""
    root = tmp_path_factory.mktemp("interrupted")
    started = {
        engine: subprocess.Popen(
            [sys.executable, "-m", "tests.drivers.interrupting", root / engine, engine, *ways],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for engine, ways in WAYS.items()
    }
    answers = {}

    def answer(engine):
        if engine not in answers:
            answers[engine] = json.loads(started[engine].communicate()[0])
        return answers[engine]

    yield answer
    for process in started.values():
        process.kill()
        process.wait()


# --- worker processes


@dataclass
class Ended:
    """How a driver ended, in its own words, and what it printed."""

    lines: list[str]
    errors: str
    left: list[int]


def marked(mark: str) -> list[int]:
    """Processes that have a mark in their environment: a driver and all that it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def working(folder: Path, accident: str, patience: float = 0.0) -> Ended:
    """The run over two workers with an accident, and which processes are left a second later."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.drivers.working", folder, accident],
        cwd=ROOT,
        env={**os.environ, "FEDSHIFT_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if accident == "wait":
        assert process.stdout.readline() == "training\n"
        assert len(marked(mark)) == 3
        time.sleep(patience)
        process.kill()
    out, errors = process.communicate(timeout=240)  # only a process that hangs takes so long
    until = time.monotonic() + 1.0
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return Ended(out.splitlines(), errors, left)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_accidents_of_workers_leave_no_process_and_change_no_result(tmp_path, drivers):
    folder = tmp_path / "run"

    killed = working(folder, "wait", patience=0.07)  # from outside, whatever it is doing
    assert killed.left == [] and killed.lines == []

    stopped = working(folder, "ctrl-c")
    wanted = f"Interrupted: interrupted; continue with: fedshift run --resume {folder}"
    assert stopped.lines == [wanted] and stopped.left == []
    assert "Traceback" not in stopped.errors

    lost = working(folder, "worker")
    client = lost.lines[0].split()[-1]
    assert lost.lines[1].startswith(
        "BadRun: a worker process was killed by signal 9 while training"
    )
    assert f"client '{client}': resume the run" in lost.lines[1] and lost.left == []

    assert working(folder, "none").lines == ["done"]
    whole = tmp_path / "whole"  # another number of workers writes the same, but for that number
    toy_run.run(whole, workers=1).play()
    unlike = toy_run.differences(folder, toy_run.outcome(whole))
    assert {Path(name).name for name in unlike} == {"config.toml", "state.json"}


@dataclass(frozen=True)
class Faulty(Method):
    """A method with a mistake that shows with one client."""

    name: ClassVar[str] = "faulty"

    def broadcast(self, server, client, round):
        return State({}, {"wrong": 1.0} if client == "b" else {})

    def correct(self, grads, params, ctx):
        if "wrong" in ctx.received:
            raise ValueError("a mistake of the method's author")
        return grads


def test_an_exception_in_a_worker_comes_with_the_client(tmp_path):
    run = Run(
        federation(), Faulty(), fs.Protocol(rounds=1, batch=5), ToyNet, workers=2, device="cpu"
    )
    with pytest.raises(RuntimeError, match="client 'b' failed in a worker process") as caught:
        run.play()
    assert "ValueError: a mistake of the method's author" in str(caught.value)
    assert "in correct" in str(caught.value)


# --- kills, Ctrl-C and full disks


@pytest.mark.parametrize(("engine", "way"), [(e, w) for e, ways in WAYS.items() for w in ways])
def test_interrupted_and_resumed_is_as_never_interrupted(drivers, engine, way):
    found = drivers(engine)[way]
    assert found["failures"] == []
    assert found["attempts"] >= LEAST[way]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_ctrl_c_without_a_folder_and_play_goes_on(engine, monkeypatch):
    """In the same process nothing is lost either."""
    whole = start("fedbn", engine=engine).play()
    run = start("fedbn", engine=engine)
    step, steps = Trip.step, iter(range(10**6))

    def pressed(self, work, t, masked):
        if next(steps) == 3 * (3 if engine == "loop" else 1) + 1:
            signal.raise_signal(signal.SIGINT)
        step(self, work, t, masked)

    monkeypatch.setattr(Trip, "step", pressed)
    with pytest.raises(Interrupted, match="the run has no folder, so nothing was saved"):
        run.play()
    run.play()
    assert run.weights_sha256 == whole.weights_sha256
    assert len(run.lines) == len(whole.lines)


# --- damaged and foreign folders


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that was stopped after its third round."""
    folder = tmp_path_factory.mktemp("half") / "run"

    def stop(run, line):
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        toy_run.run(folder).play(stop)
    return folder


@pytest.fixture
def folder(half, tmp_path):
    return Path(shutil.copytree(half, tmp_path / "run"))


def tensors_of(folder: Path) -> Path:
    return next((folder / "checkpoint").glob("*/tensors.safetensors"))


def state_of(folder: Path) -> Path:
    return next((folder / "checkpoint").glob("*/state.json"))


def cut_short(folder):
    tensors_of(folder).write_bytes(tensors_of(folder).read_bytes()[:-50])


def flip(folder):
    data = bytearray(tensors_of(folder).read_bytes())
    data[-9] ^= 4
    tensors_of(folder).write_bytes(data)


def foreign_tensors(folder):
    save_file({"x": torch.zeros(2)}, tensors_of(folder))


def lost_tensors(folder):
    tensors_of(folder).unlink()


def no_json(folder):
    state_of(folder).write_text("{")


def other_json(folder):
    state_of(folder).write_text("[]")


def without(key):
    def change(folder):
        state = json.loads(state_of(folder).read_text())
        del state[key]
        state_of(folder).write_text(json.dumps(state))

    return change


def word_for_number(folder):
    state = json.loads(state_of(folder).read_text())
    state_of(folder).write_text(json.dumps({**state, "round": "three"}))


def newer_format(folder):
    state = json.loads(state_of(folder).read_text())
    state_of(folder).write_text(json.dumps({**state, "format": 99}))


def tensors_of_a_model(folder):
    files.save_tensors(tensors_of(folder), {"conv.0.weight": torch.zeros(2)}, {})


def other_config(folder):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 6", "rounds = 7"))


def no_toml(folder):
    (folder / "config.toml").write_text("rounds = \n")


def unknown_entry(folder):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("momentum = 0.9", "momentums = 0.9"))


def short_metrics(folder):
    files.cut(folder / "metrics.jsonl", 100)


def no_metrics(folder):
    (folder / "metrics.jsonl").unlink()


def garbled_metrics(folder):
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20] + 20 * b"x")


def no_config(folder):
    (folder / "config.toml").unlink()


RESTORE = r"restore it, or delete the folder .*round-00-000003 and resume from its beginning$"
DAMAGES = [
    (cut_short, r"tensors.safetensors is cut short or damaged .*: " + RESTORE),
    (flip, r"tensors.safetensors is damaged \(its checksum differs\): " + RESTORE),
    (foreign_tensors, r"tensors.safetensors was not written by fedshift: " + RESTORE),
    (lost_tensors, r"tensors.safetensors does not exist: " + RESTORE),
    (no_json, r"state.json is not valid JSON .*: " + RESTORE),
    (other_json, r"state.json is no checkpoint's: " + RESTORE),
    (word_for_number, r"state.json is no checkpoint's: " + RESTORE),
    (without("stage"), r"state.json lacks 'stage': " + RESTORE),
    (without("best"), r"state.json lacks 'best': " + RESTORE),
    (
        newer_format,
        r"has format 99, this version reads 1: continue with the version that wrote it$",
    ),
    (
        tensors_of_a_model,
        r"the checkpoint in .* does not fit this run \(the model differ\): continue",
    ),
    (other_config, r"belongs to another configuration: restore the run's config.toml, or start"),
    (no_toml, r"config.toml is not valid TOML .*: mend that place$"),
    (unknown_entry, r"config.toml cannot be used .*momentums.*: restore it as it was written$"),
    (
        short_metrics,
        r"metrics.jsonl is missing or shorter than its checkpoint says: restore it, or start anew",
    ),
    (no_metrics, "metrics.jsonl is missing or shorter than its checkpoint says"),
    (garbled_metrics, r"metrics.jsonl, line \d+, is not a JSON object: restore it"),
    (no_config, r"holds no config.toml: it is not a run's folder$"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_named_and_makes_nothing_worse(folder, damage, message):
    damage(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(BadRun, match=message) as caught:
        Run.resume(folder, toy_run.federation())
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_following_the_remedy_helps(folder, half, tmp_path):
    shutil.copytree(half, tmp_path / "whole")
    toy_run.run(tmp_path / "whole").play()
    flip(folder)
    shutil.rmtree(tensors_of(folder).parent)
    toy_run.run(folder).play()
    assert toy_run.differences(folder, toy_run.outcome(tmp_path / "whole")) == []


def test_what_is_given_again_must_be_the_same(folder, tmp_path):
    fewer = toy_run.federation().without(["a"])
    with pytest.raises(BadRun, match=r"begun with another federation \(its facts differ\)"):
        Run.resume(folder, fewer)
    with pytest.raises(BadRun, match=r"begun with another method \(its method differ\)"):
        Run.resume(folder, toy_run.federation(), method=fs.methods.FedAvg())
    with pytest.raises(BadRun, match="does not fit this run"):
        Run.resume(folder, toy_run.federation(), model=lambda: ToyNet(norm=False))
    assert Run.resume(folder, toy_run.federation(), workers=2).workers == 2
    with pytest.raises(BadRun, match=r"of '.*' came from Python .* federation=…"):
        Run.resume(folder)


def test_a_new_run_does_not_go_on_in_the_folder_of_another(folder):
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(BadRun, match=r"holds something already: .*fedshift run --resume"):
        start("fedavg", out=folder).play()
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_what_a_kill_at_the_very_beginning_leaves_is_no_obstacle(tmp_path):
    (tmp_path / ".tmp-123-0").write_text("half a config")
    run = start("fedavg", fs.Protocol(rounds=1, batch=5), out=tmp_path).play()
    assert len(run.lines) == 4 and not (tmp_path / ".tmp-123-0").exists()


# --- what a checkpoint holds


def test_what_is_read_back_is_in_the_order_of_the_run(folder):
    """Sums over clients or tensors round alike only in one order."""
    run = toy_run.run(folder)
    protocol = toy_run.PROTOCOL.replace(rounds=2)
    fresh = start("fedbn+scaffold", protocol, fed=toy_run.federation(), hold_out=("c",)).play()
    for kept in (run.progress.kept, run.progress.best.kept):
        assert list(kept) == list(fresh.progress.kept) == ["d", "b", "a"]
    assert list(run.progress.server.model) == list(fresh.progress.server.model)
    own, other = (r.progress.kept["a"] for r in (run, fresh))
    assert list(own) == [n for n in other if n in own] and len(own) > 10


def test_numbers_without_bounds_survive(folder, tmp_path):
    run = toy_run.run(folder)
    numbers = {"low": float("inf"), "count": 3, "rate": 0.1}
    server = checkpoint.Server(run.progress.server.model, {"x": State({}, numbers)})
    checkpoint.save(tmp_path / "c", checkpoint.Progress(0, 1, 1, server, Kept(["a"], {})), "")
    assert checkpoint.load(tmp_path / "c", "").server.methods["x"].numbers == numbers
