"""FedBN: what batch norms own never travels, wherever they stand and whatever they are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift import evaluate, tree
from fedshift.engines import choice
from fedshift.methods.fedbn import FedBN
from fedshift.models import Staged
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import CLASSES, ToyNet, federation

NORM = {
    f"conv.1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_norms_go_nowhere_and_come_through_a_round_bit_by_bit(engine):
    run = start("fedbn", engine=engine)
    jobs = run._jobs(run.stages[0], run.progress)
    result = choice.start(run.plan, run.federation, engine, 0).play(jobs)
    assert not NORM & set(result.model) and NORM.isdisjoint(run.plan.down)
    assert {f"model/{n}" for n in NORM} == set(result.kept[0])
    at_start = tree.pick(run.progress.server.model, NORM)
    run = start("fedbn", PROTOCOL.replace(rounds=1), engine=engine).play()
    for client, kept in zip(result.clients, result.kept):
        assert tree.digest(run.progress.kept[client]) == tree.digest(kept)
    # the server's never leave their initial values
    assert tree.digest(tree.pick(run.progress.server.model, NORM)) == tree.digest(at_start)
    own = [k["model/conv.1.running_mean"] for k in run.progress.kept.values()]
    assert not torch.allclose(own[0], own[1])


def test_a_client_goes_on_from_what_it_kept():
    """After 2 rounds of 4, 2 and 3 steps (batches of 5), its counters say 8, 4 and 6."""
    run = start("fedbn").play()
    counts = [k["model/conv.1.num_batches_tracked"].item() for k in run.progress.kept.values()]
    assert counts == [8, 4, 6]


def test_fewer_bytes_travel():
    norms = 4 * 4 * 8 + 8  # four vectors of 4 channels in float64, and a counter
    ours, theirs = start("fedbn").play().lines[0], start("fedavg").play().lines[0]
    assert ours["bytes_up"] == theirs["bytes_up"] - norms == ours["bytes_down"]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_with_one_client_it_is_fedavg(engine):
    fed = federation((17,))
    ours = start("fedbn", fed=fed, engine=engine).play().progress
    theirs = start("fedavg", fed=fed, engine=engine).play().progress
    mine = evaluate.personal_tensors(ours.server.model, ours.kept["a"])
    assert tree.digest(mine) == tree.digest(theirs.server.model)


def test_affine_false_keeps_the_statistics_alone():
    run = start(FedBN(affine=False)).play()
    assert set(run.plan.own) == NORM - {"conv.1.weight", "conv.1.bias"}
    affine = run.progress.server.model["conv.1.weight"]
    assert not torch.equal(affine, torch.ones_like(affine)), "is averaged"
    assert {"conv.1.weight", "conv.1.bias"} <= set(run.plan.shared)


class Residual(Staged):
    """Batch norms behind a number and a misleading name, and a "bn" that is none."""

    stages = ("block",)

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential()
        self.block.add_module("downsample", nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)))
        self.block.add_module("plain", nn.SyncBatchNorm(4))
        self.block.add_module("bn", nn.GroupNorm(2, 4))
        self.block.add_module("batchnorm", nn.InstanceNorm2d(4, affine=True))
        self.head = nn.Linear(4, CLASSES)

    def join(self, x):
        return x.mean((2, 3))


def test_layers_are_found_by_type():
    plan = fs.Run(federation(), "fedbn", PROTOCOL, Residual, dtype="float64", device="cpu").plan
    owners = {n.rpartition(".")[0] for n in plan.names("kept")}
    assert owners == {"block.downsample.1", "block.plain"}
    assert {"block.bn.weight", "block.batchnorm.weight"} <= set(plan.shared)


def test_who_has_not_taken_part_yet_is_scored_with_the_initial_norms():
    run = start("fedbn", PROTOCOL.replace(rounds=1, participation=2)).play()
    absent = next(c for c, kept in run.progress.kept.items() if not kept)
    scores = {line["client"]: line["personal_test"] for line in run.lines if line["client"]}
    test = run.federation[absent].test
    guess = evaluate.logits(run.plan, run.progress.server.model, test.x).argmax(1)
    assert scores[absent] == pytest.approx((guess == test.y).double().mean().item())


@pytest.mark.parametrize("eval_batch", [512, 5])
def test_an_unseen_client(eval_batch):
    """Weight and bias are the mean of the others'; mean and variance those of its own inputs.

    With batches of 5, its 12 samples make two, whose statistics count alike.
    """
    run = start("fedbn", PROTOCOL.replace(eval_batch=eval_batch), hold_out=["c"]).play()
    kept, client = run.progress.kept, run.unseen[0]
    assert set(kept) == {"a", "b"}
    expected = dict(run.progress.server.model)
    for name in NORM:
        a, b = (kept[c][f"model/{name}"] for c in "ab")
        expected[name] = (a + b) / 2 if a.is_floating_point() else torch.maximum(a, b)
    weight, bias = expected["conv.0.weight"], expected["conv.0.bias"]
    batches = [client.train.x] if eval_batch == 512 else [client.train.x[:5], client.train.x[5:10]]
    seen = [
        nn.functional.conv2d(x, weight, bias, padding=1).movedim(1, 0).flatten(1) for x in batches
    ]
    expected["conv.1.running_mean"] = sum(s.mean(1) for s in seen) / len(seen)
    expected["conv.1.running_var"] = sum(s.var(1) for s in seen) / len(seen)
    found = evaluate.for_unseen(
        run.plan, run.progress.server.model, list(kept.values()), client.train.x
    )
    for name in set(expected) - {"conv.1.num_batches_tracked"}:
        assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-12), name

    net = ToyNet().double().eval()
    net.load_state_dict(found)
    right = (net(client.test.x).argmax(1) == client.test.y).double().mean().item()
    line = next(line for line in run.lines[::-1] if line["client"] == "c")
    assert (line["role"], line["test"]) == ("unseen", pytest.approx(right))
    assert next(line for line in run.lines[::-1] if line["client"] == "a")["test"] is None
