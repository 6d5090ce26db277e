"""Seeds trained at once give the runs that they give alone."""

from __future__ import annotations

import pytest

import fedshift as fs
from fedshift import files, together, tree
from fedshift.errors import BadValue
from fedshift.run import Run
from tests.methods.test_battery import ALL, COMPOSITIONS, PROTOCOL, make, state
from tests.toys import ToyNet, federation, largest_difference


def start(name="fedavg", seed=0, protocol=PROTOCOL, **options) -> Run:
    options = {"engine": "stacked", "dtype": "float64", "device": "cpu", **options}
    return Run(
        federation(),
        make(name) if isinstance(name, str) else name,
        protocol,
        ToyNet,
        seed=seed,
        warn=lambda message: None,
        **options,
    )


@pytest.mark.parametrize("name", ALL + COMPOSITIONS)
def test_every_method_comes_to_the_same_as_alone(name):
    if not make(name).stackable:
        pytest.skip("declares itself unstackable")
    protocol = PROTOCOL.replace(participation=2)
    runs = [start(name, seed, protocol) for seed in (0, 7)]
    together.play(runs)
    run = runs[1]  # whose rows are not the first of the stack
    alone = start(name, run.seed, protocol).play()
    assert largest_difference(state(run), state(alone)) < 1e-9
    for ours, theirs in zip(run.lines, alone.lines, strict=True):
        assert (ours["client"], ours.get("test")) == (theirs["client"], theirs.get("test"))
    one, other = (run.progress.server.model for run in runs)
    assert largest_difference(one, other) > 1e-6


@pytest.mark.parametrize("chunk", [2, 4])
def test_chunks_may_lie_across_seeds(chunk):
    runs = [start("fedbn", seed, chunk=chunk) for seed in (0, 1, 2)]
    together.play(runs)
    for run in runs:
        assert largest_difference(state(run), state(start("fedbn", run.seed).play())) < 1e-9


def test_a_run_that_is_ahead_waits(tmp_path):
    class Stop(Exception):
        pass

    def stop(run, line):
        raise Stop

    protocol = PROTOCOL.replace(rounds=3)
    with pytest.raises(Stop):
        start("fedavg", 0, protocol, out=tmp_path / "0").play(stop)
    ahead = Run.resume(tmp_path / "0", federation(), ToyNet, make("fedavg"))
    assert ahead.progress.done == 1
    order = []
    runs = [ahead, start("fedavg", 1, protocol, out=tmp_path / "1")]
    together.play(runs, lambda run, line: order.append((run.seed, line["round"])))
    assert order == [(1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    for seed in (0, 1):
        whole = start("fedavg", seed, protocol).play()
        model, _ = files.load_tensors(tmp_path / str(seed) / "model.safetensors")
        assert largest_difference(model, whole.progress.server.model) < 1e-9


def test_a_comparison_trains_its_seeds_together(tmp_path, monkeypatch):
    data, protocol = fs.data.load("shifted-digits"), fs.Protocol(rounds=1, steps=1, batch=8)
    options = {"model": "mlp", "engine": "stacked", "device": "cpu", "dtype": "float64"}
    sizes = []
    from fedshift.engines.stacked import Stacked

    play = Stacked.play

    def counted(self, jobs):
        sizes.append(len(jobs))
        return play(self, jobs)

    monkeypatch.setattr(Stacked, "play", counted)
    found = fs.compare(data, ["fedavg", "fedbn"], protocol, 3, out=tmp_path / "c", **options)
    assert sizes == [15, 15] and [r.seed for r in found.records] == [0, 1, 2, 0, 1, 2]
    alone = fs.Run(data, "fedavg", protocol, seed=2, **options).play()
    model, _ = files.load_tensors(tmp_path / "c" / "fedavg" / "seed2" / "model.safetensors")
    assert largest_difference(model, alone.progress.server.model) < 1e-9


def test_one_by_one_they_are_equal_to_the_bit():
    """Where clients are not stacked, nothing is shared."""
    runs = [start("fedavg", seed, engine="loop", workers=1) for seed in (0, 1)]
    together.play(runs)
    alone = start("fedavg", 1, engine="loop", workers=1).play()
    assert tree.digest(state(runs[1])) == tree.digest(state(alone))


def test_runs_that_differ_in_more_than_the_seed_are_refused():
    with pytest.raises(BadValue, match="differ in 'protocol'"):
        together.play([start(), start(seed=1, protocol=PROTOCOL.replace(lr=0.5))])
