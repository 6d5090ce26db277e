"""Every method on labels of pixels: it learns them alike on both engines, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedshift as fs
from fedshift import methods, tree
from fedshift.batches import Pool
from fedshift.data.augment import ColorJitter, Crop, Flip, Pipeline, Rotate
from fedshift.errors import BadModel, BadValue
from fedshift.run import Run
from fedshift.trip import Trip
from tests.engines.flower.sites import serve
from tests.methods.test_battery import make, state
from tests.toys import largest_difference, patches, toy_unet

ALL = methods.names()
ABLE = [name for name in ALL if "segmentation" in methods.method_class(name).tasks]
COMPOSITIONS = ["fedbn+mixup", "fedfa+mixup", "fedprox+fedbn"]
MOVING = Pipeline(augment=(Crop(1), Flip(), Rotate(20), ColorJitter(0.2)))
# a gentle rate: FedFA-h divides by ranges of channels, which large steps make tiny
PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=3, lr=0.02, eps=1e-4)


def start(name: str, protocol=PROTOCOL, fed=None, engine="loop", **options) -> Run:
    options.setdefault("warn", lambda message: None)
    return Run(
        fed or patches(),
        make(name),
        protocol,
        toy_unet,
        dtype="float64",
        device="cpu",
        engine=engine,
        workers=1,
        **options,
    )


@pytest.mark.parametrize("name", ABLE + COMPOSITIONS)
def test_stacked_equals_loop(name):
    fed = patches(pipeline=MOVING)
    loop, stacked = (start(name, fed=fed, engine=e).play() for e in ("loop", "stacked"))
    if make(name).stackable:
        assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    assert {line["client"] for line in loop.lines} >= {None, "a", "b", "c"}
    scores = [line.get(n) for line in loop.lines for n in ("test", "personal_test")]
    assert any(s is not None and 0 <= s <= 1 for s in scores)


@pytest.mark.parametrize("name", sorted(set(ALL) - set(ABLE)))
def test_one_that_cannot_is_refused_before_the_run(name):
    with pytest.raises(BadValue, match=rf"'{name}' learns classification, not .*such as") as caught:
        start(name)
    assert "\n" not in str(caught.value)


def test_these_cannot_and_these_can():
    """So that a method does not lose segmentation unseen."""
    assert set(ALL) - set(ABLE) >= {"dann", "fedbr", "feddecorr", "fedgenp", "fedlsi", "fraug"}
    assert set(ABLE) >= {"fedavg", "fedbn", "fedfa", "fedfa-plus", "fedprox", "mixup", "scaffold"}


@pytest.mark.parametrize("name", ["fedbn", "fedfa"])
def test_resumed_equals_uninterrupted(name, tmp_path: Path):
    protocol = PROTOCOL.replace(rounds=3, reset_optimizer=False, momentum=0.9, select="best-val")
    fed = patches(pipeline=MOVING, metric="dice-all")
    whole = start(name, protocol, fed, out=tmp_path / "whole").play()

    class Stop(Exception):
        pass

    def stop(run, line):
        if line["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        start(name, protocol, fed, out=tmp_path / "cut").play(stop)
    again = Run.resume(tmp_path / "cut", fed, toy_unet, warn=lambda message: None)
    assert again.progress.done == 2 and again.plan.facts.metric == "dice-all"
    again.play()
    assert tree.digest(state(again)) == tree.digest(state(whole))
    scores = [[{**line, "seconds": 0} for line in run.lines] for run in (again, whole)]
    assert scores[0] == scores[1]


def test_sites_equal_the_loop(tmp_path):
    """Over encoded messages; the sites score by the server's metric."""
    fed = patches(pipeline=MOVING, metric="dice-all")
    one = start("fedfa+fedbn", fed=fed).play()
    other = serve("fedfa+fedbn", tmp_path, PROTOCOL, fed, model="tests.toys:toy_unet").play()
    assert largest_difference(one.progress.server.model, other.progress.server.model) < 1e-9
    for a, b in zip(one.lines, other.lines, strict=True):
        assert a.get("personal_test") == b.get("personal_test")
        assert a.get("mean") == (None if b.get("mean") is None else pytest.approx(b["mean"]))


@pytest.mark.parametrize("mapped", [False, True])
def test_a_step_moves_masks_with_their_images(mapped):
    """Images that show nothing but their mask still show it after crop, flip and colour."""
    fed = patches(pipeline=Pipeline(augment=(Crop(2), Flip(), ColorJitter(0.0))))
    bare = fed.map(
        lambda c: fs.Client(
            c.name, *(fs.Samples(s.y[:, None].double(), s.y) for s in (c.train, c.val, c.test))
        )
    )
    run = start("fedavg", fed=bare)
    jobs = run._jobs(run.stages[0], run.progress)
    jobs = jobs if mapped else jobs[:1]
    pool = Pool.of([c.train for c in bare.clients], run.device)
    trip = Trip(run.plan, pool, mapped)
    work = trip.begin(jobs, 3)
    x, y = trip._fetch(work)
    assert y.dtype == torch.int64 and x.dim() == 4 + mapped
    assert torch.equal(x.squeeze(-3), y.double())
    plain = pool.take(work.table.select(-2, 0) + work.first[..., None])[1]
    assert not torch.equal(y, plain.reshape(y.shape))


def test_a_network_of_the_other_task_is_refused():
    with pytest.raises(BadModel, match=r"to label pixels it must give maps .* take unet"):
        Run(patches(), "fedavg", PROTOCOL, "small-cnn", device="cpu")
    with pytest.raises(BadModel, match=r"it must give .B, D., .* for segmentation"):
        Run(fs.data.load("shifted-digits"), "fedavg", PROTOCOL, "unet-small", device="cpu")
    with pytest.raises(BadModel, match=r"2 classes and 8x8 pixels .*2 outputs for each pixel"):
        Run(patches(), "fedavg", PROTOCOL, lambda s, c: toy_unet(s, 3), device="cpu")
