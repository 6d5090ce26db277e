"""Every registered method through the same checks, on a toy federation in float64.

A new method is tested here without a line of its own; what its paper promises is tested in its own
file.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import fedshift as fs
from fedshift import methods, tree
from fedshift.engines import choice
from fedshift.hparam import hypers
from fedshift.run import Run
from tests.toys import ToyNet, federation, largest_difference

ALL = methods.names()
COMPOSITIONS = [
    "fedprox+mixup",
    "fedbn+mixup",
    "fedbn+scaffold",
    "fedavgm+fedprox",
    "pfedavg+mixup",
]
# near-zero gradients are divided by epsilon in Adam: the design's note
PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1, eps=1e-4)


def make(name: str):
    """The method at the values that let it finish quickly."""
    quick = {}
    for part in name.split("+"):
        for hyper in hypers(methods.method_class(part)).values():
            if hyper.quick is not None:
                quick[f"{part}.{hyper.name}"] = hyper.quick
    return methods.make(name, quick)


def start(name, protocol=PROTOCOL, fed=None, engine="loop", **options) -> Run:
    method = make(name) if isinstance(name, str) else name
    options.setdefault("warn", lambda message: None)
    return Run(
        fed or federation(),
        method,
        protocol,
        ToyNet,
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        **options,
    )


def state(run: Run) -> dict[str, torch.Tensor]:
    """Everything a run has learnt, at the server and at the clients."""
    whole = dict(run.progress.server.model)
    for method, s in run.progress.server.methods.items():
        whole |= tree.with_prefix(f"server/{method}", s.tensors)
    for client, kept in run.progress.kept.items():
        whole |= tree.with_prefix(f"kept/{client}", kept)
    return whole


@pytest.mark.parametrize("name", ALL + COMPOSITIONS)
@pytest.mark.parametrize("participation", [1.0, 2])
def test_stacked_equals_loop(name, participation):
    if not make(name).stackable:
        pytest.skip("declares itself unstackable")
    protocol = PROTOCOL.replace(participation=participation)
    loop = start(name, protocol).play()
    stacked = start(name, protocol, engine="stacked").play()
    assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    for a, b in zip(loop.lines, stacked.lines, strict=True):
        assert a["client"] == b["client"]
        for term, value in (a["loss"] or {}).items():
            assert value == pytest.approx(b["loss"][term], abs=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_chunks_of_clients_change_nothing(name):
    if not make(name).stackable:
        pytest.skip("declares itself unstackable")
    whole = start(name, engine="stacked").play()
    chunked = start(name, engine="stacked", chunk=2).play()
    assert largest_difference(state(whole), state(chunked)) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_give_equal_bits_and_others_do_not(name):
    a, b, c = start(name).play(), start(name).play(), start(name, seed=1).play()
    assert tree.digest(state(a)) == tree.digest(state(b))
    assert tree.digest(state(a)) != tree.digest(state(c))


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_clients_does_not_matter(name):
    fed = federation()
    turned = fs.Federation(fed.name, fed.clients[::-1], fed.classes, fed.pipeline)
    if make(name).pooled:
        pytest.skip("pooled samples have an order of their own")
    a, b = start(name, fed=fed).play(), start(name, fed=turned).play()
    assert largest_difference(state(a), state(b)) < 1e-9


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", ALL)
def test_a_round_leaves_what_it_was_given(name, engine):
    run = start(name, engine=engine)
    jobs = run._jobs(run.stages[0], run.progress)
    before = tree.digest(state(run)), [tree.digest(dict(j.payload.tensors)) for j in jobs]
    player = choice.start(run.plan, run.federation, run.engine_name, 0)
    result = player.play(jobs)
    assert (tree.digest(state(run)), [tree.digest(dict(j.payload.tensors)) for j in jobs]) == before
    assert not set(result.model) & set(run.plan.names("kept", "down"))
    assert result.clients == [j.client for j in jobs]


@pytest.mark.parametrize("name", ALL)
def test_resumed_equals_uninterrupted(name, tmp_path: Path):
    protocol = PROTOCOL.replace(rounds=3, reset_optimizer=False, momentum=0.9, select="best-val")
    whole = start(name, protocol, out=tmp_path / "whole").play()

    class Stop(Exception):
        pass

    def stop(run, line):
        if line["stage"] == "train" and line["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        start(name, protocol, out=tmp_path / "cut").play(stop)
    again = Run.resume(
        tmp_path / "cut", federation(), ToyNet, method=make(name), warn=lambda message: None
    )
    assert again.progress.done == 2
    again.play()
    assert tree.digest(state(again)) == tree.digest(state(whole))
    files = sorted(
        p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*.safetensors")
    )
    for path in (p for p in files if p.parts[0] != "checkpoint"):
        assert (tmp_path / "whole" / path).read_bytes() == (tmp_path / "cut" / path).read_bytes()
    assert _scores(again) == _scores(whole)


def _scores(run: Run) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines]


@pytest.mark.parametrize("name", ALL)
def test_switched_off_it_is_fedavg(name):
    kind = methods.method_class(name)
    off = {n: h.off for n, h in hypers(kind).items() if h.has_off}
    if not off:
        pytest.skip("has no values at which it is FedAvg")
    a, b = start(fs.methods.FedAvg()).play(), start(kind(**off)).play()
    assert largest_difference(a.progress.server.model, b.progress.server.model) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_learns(name):
    protocol = fs.Protocol(rounds=4, epochs=2, batch=6, lr=0.2, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = start(name, protocol, fed=federation((24, 18, 21)), warn=lambda message: None).play()
    assert run.lines[-1]["mean"] > 0.6, "chance is 1/3"


@pytest.mark.parametrize("name", ALL)
def test_speaks_for_itself(name):
    kind = methods.method_class(name)
    assert kind.name == name and kind.paper and kind.__doc__
    assert kind.view in ("global", "personal")
    for hyper in hypers(kind).values():
        assert len(hyper.meaning) > 10, f"{hyper.name} says nothing"
