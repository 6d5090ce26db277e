"""Every hook of the client path, on both engines: small methods whose effect is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys
from fedshift.data.augment import Crop, Flip, Noise, Pipeline
from fedshift.hparam import hp
from fedshift.method import Method, Phase, Report, Scope, Stage, State
from fedshift.net import insert_after
from tests.methods.test_battery import start, state
from tests.toys import federation, largest_difference

PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1, momentum=0.9)


def both(method, protocol=PROTOCOL, **options):
    """The same run on both engines, after checking that they agree."""
    loop = start(method, protocol, **options).play()
    stacked = start(method, protocol, engine="stacked", **options).play()
    assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    return loop


@dataclass(frozen=True)
class Sam(Method):
    """Two passes over one batch; the second must see the same dropout and move no buffer."""

    name: ClassVar[str] = "sam"
    rho: float = hp(0.05, "size of the step uphill", low=0, off=0.0)

    def gradient(self, loss, params, ctx):
        g = loss.grad(params)
        norm = torch.stack([t.square().sum() for t in g.values()]).sum().sqrt()
        return loss.grad({n: p + self.rho * g[n] / (norm + 1e-12) for n, p in params.items()})


def test_a_replaced_gradient():
    run = both(Sam())
    plain = both(fs.methods.FedAvg())
    assert largest_difference(run.progress.server.model, plain.progress.server.model) > 1e-4
    off = both(Sam(rho=0.0))
    assert largest_difference(off.progress.server.model, plain.progress.server.model) < 1e-12
    tracked = "conv.1.num_batches_tracked"
    assert run.progress.server.model[tracked] == plain.progress.server.model[tracked]


@dataclass(frozen=True)
class MinMax(Method):
    """An attached network trained uphill every second step, before the model goes downhill."""

    name: ClassVar[str] = "minmax"
    together: bool = hp(False, "take both gradients at the same point")

    def build(self, model, facts):
        model.add_module("critic", nn.Sequential(nn.Linear(facts.width, 4), nn.BatchNorm1d(4)))
        return model

    def scope(self, name, module):
        return Scope(group="critic" if name.startswith("critic.") else "model")

    def phases(self):
        return (
            Phase("up", ("critic",), ("critic",), sign=-1, every=2, offset=1, lr=0.05),
            Phase("model", terms=("*", "critic"), together=self.together),
        )

    def loss(self, out, y, ctx, net):
        return {"critic": 0.1 * net.call("critic", out.z).square().mean()}


@pytest.mark.parametrize("together", [False, True])
def test_phases(together):
    run = both(MinMax(together=together))
    model = run.progress.server.model
    # with a batch of 5, clients of 17, 9 and 12 samples take 4, 2 and 3 steps a round, and go
    # uphill in the second and fourth of them; the critic's buffers move then alone
    assert model["critic.1.num_batches_tracked"] == 2 + 2
    assert model["conv.1.num_batches_tracked"] == 4 + 4
    assert set(run.lines[-1]["loss"]) == {"critic", "task"}


def test_together_is_another_algorithm():
    a, b = start(MinMax()).play(), start(MinMax(together=True)).play()
    assert largest_difference(state(a), state(b)) > 1e-6


@dataclass(frozen=True)
class Collector(Method):
    """A stage before training: class counts come up, a payload per client goes down."""

    name: ClassVar[str] = "collector"

    def stages(self, protocol):
        return (Stage("collect", 1, "collect", everyone=True), Stage("train", protocol.rounds))

    def init_server(self, params, facts):
        like = next(iter(params.values()))
        return State({"counts": like.new_zeros(facts.classes)}, {"seen": 0})

    def report(self, ctx, net, data):
        def count(acc, x, y, mask):
            ones = F.one_hot(y, ctx.facts.classes).to(torch.float64)
            feature = net.features(x).sum(dim=1)
            return {
                "counts": acc["counts"] + torch.where(mask[:, None], ones, 0.0).sum(0),
                "feature": acc["feature"] + torch.where(mask, feature, 0.0).sum(),
            }

        zero = ctx.lr.new_zeros(())
        start = {"counts": ctx.lr.new_zeros(ctx.facts.classes), "feature": zero}
        found = data.fold(count, start, batch=4)
        return Report(
            sum={"counts": found["counts"]},
            individual={"feature": found["feature"]},
            keep={"rounds": ctx.kept.get("rounds", zero) + 1},
        )

    def broadcast(self, server, client, round):
        return State({"counts": server.tensors["counts"]}, {"offset": float(ord(client))})

    def after(self, new, uploads, server, net, key):
        counts = uploads.combined["counts"]
        assert uploads.extras["feature"].shape == (len(uploads.clients),)
        return new, State({"counts": counts}, {"seen": server.numbers["seen"] + 1})

    def start(self, ctx, net, data):
        return {"prior": ctx.received["counts"] / ctx.received["counts"].sum().clamp_min(1)}

    def loss(self, out, y, ctx, net):
        pull = (out.logits.softmax(1).mean(0) - ctx.fixed["prior"]).square().sum()
        return {"prior": pull + 1e-3 * ctx.received["offset"] * out.z.square().mean()}


def test_stages_payloads_and_uploads():
    run = both(Collector())
    counts = run.progress.server.methods["collector"]
    labels = torch.cat([c.train.y for c in run.federation.clients])
    assert counts.tensors["counts"].tolist() == torch.bincount(labels).tolist()
    assert counts.numbers["seen"] == 3
    assert all(k["collector/rounds"] == 3 for k in run.progress.kept.values())
    assert [line["stage"] for line in run.lines if line["client"] is None] == [
        "collect",
        "train",
        "train",
    ]


@dataclass(frozen=True)
class Noisy(Method):
    """An inserted layer with random numbers and a statistic of its own, only sent up."""

    name: ClassVar[str] = "noisy"
    taps: ClassVar[tuple[str, ...]] = ("hidden",)

    class Layer(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(channels))

        def forward(self, x):
            if not self.training:
                return x
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 2, 3)))
            return x + 0.1 * torch.randn_like(x)

    def build(self, model, facts):
        layer = self.Layer(facts.stage_shapes["conv"][0])
        insert_after(model, "conv", "noise", layer)
        return model

    def scope(self, name, module):
        return Scope("up") if isinstance(module, self.Layer) else Scope()

    def combine(self, name, stacked, weights):
        return stacked.var(dim=0, correction=0) if name == "noise.mean" else None

    def loss(self, out, y, ctx, net):
        teacher = net.at(ctx.initial)
        return {
            "tap": 1e-2 * out.stage("hidden").square().mean()
            + F.mse_loss(out.z, teacher.features(out.x))
        }


def test_inserted_layers_taps_and_teachers():
    run = both(Noisy())
    own = torch.stack([k["model/noise.mean"] for k in run.progress.kept.values()])
    assert torch.allclose(run.progress.server.model["noise.mean"], own.var(dim=0, correction=0))


@dataclass(frozen=True)
class ByLoss(Method):
    """Clients weighted by their last loss."""

    name: ClassVar[str] = "byloss"

    def report(self, ctx, net, data):
        def add(acc, x, y, mask):
            each = F.cross_entropy(net(x), y, reduction="none")
            return {"loss": acc["loss"] + torch.where(mask, each, 0.0).sum()}

        total = data.fold(add, {"loss": ctx.lr.new_zeros(())})["loss"]
        return Report(individual={"loss": total / ctx.samples})

    def weights(self, uploads, server):
        return uploads.extras["loss"]


def test_weights_of_a_method():
    run = both(ByLoss() + fs.methods.FedProx(mu=0.5))
    assert run.method.name == "byloss+fedprox"


def test_augmentation_is_the_same_on_both_engines():
    pipeline = Pipeline((0.4,), (0.3,), (Crop(1), Flip(0.5), Noise(0.05)))
    fed = federation(pipeline=pipeline)
    augmented = both(fs.methods.FedAvg(), fed=fed)
    plain = both(fs.methods.FedAvg(), fed=federation(pipeline=Pipeline((0.4,), (0.3,))))
    assert largest_difference(state(augmented), state(plain)) > 1e-6


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_optimizers_kept_over_rounds_with_uneven_steps(optimizer):
    protocol = PROTOCOL.replace(
        rounds=3,
        optimizer=optimizer,
        lr=0.01,
        eps=1e-4,
        weight_decay=1e-2,
        reset_optimizer=False,
        participation=2,
        clip=0.5,
        schedule="cosine",
        weights="samples",
        momentum=0.9 if optimizer == "sgd" else 0.0,
    )
    run = both(fs.methods.FedBN(), protocol)
    kept = [n for k in run.progress.kept.values() for n in k if n.startswith("optimizer/")]
    assert kept


def test_clipping_is_per_client():
    clipped = both(fs.methods.FedAvg(), PROTOCOL.replace(clip=0.01, momentum=0.0))
    free = both(fs.methods.FedAvg(), PROTOCOL.replace(clip=1e6, momentum=0.0))
    plain = both(fs.methods.FedAvg(), PROTOCOL.replace(momentum=0.0))
    assert largest_difference(free.progress.server.model, plain.progress.server.model) < 1e-12
    assert largest_difference(clipped.progress.server.model, plain.progress.server.model) > 1e-4


def test_one_step_of_all_data_is_the_centralised_step():
    fed = federation((12, 12, 12))
    from tests.toys import ToyNet

    def plain():
        return ToyNet(dropout=0.0, norm=False)

    protocol = fs.Protocol(rounds=1, steps=1, batch=12, lr=0.5)
    run = fs.Run(
        fed, "fedavg", protocol, plain, dtype="float64", device="cpu", engine="loop"
    ).play()
    whole = fs.Run(
        fed, "centralized", protocol.replace(batch=36), plain, dtype="float64", device="cpu"
    ).play()
    assert largest_difference(run.progress.server.model, whole.progress.server.model) < 1e-12


def test_bf16_computes_in_bfloat16_and_keeps_float32():
    from fedshift.run import Run
    from tests.toys import ToyNet

    fed = federation()
    runs = [
        Run(
            fed, "fedprox", PROTOCOL, ToyNet, dtype=d, engine=e, device="cpu", warn=lambda m: None
        ).play()
        for d, e in (("float32", "loop"), ("bf16", "loop"), ("bf16", "stacked"))
    ]
    tensors = [r.progress.server.model["head.weight"] for r in runs]
    assert all(t.dtype == torch.float32 for t in tensors)
    assert 1e-6 < (tensors[0] - tensors[1]).abs().max() < 0.05
    assert (tensors[1] - tensors[2]).abs().max() < 0.02


def test_streams_of_samples():
    from fedshift.batches import order

    key = keys.as_tensor(keys.fold(0, "order"))
    table = order(key, torch.tensor(10), steps=6, batch=4, largest=10, smallest=10)
    flat = table.flatten().tolist()
    assert sorted(flat[:10]) == sorted(flat[10:20]) == list(range(10))
    assert flat[:10] != flat[10:20]
    both_keys = torch.stack([key, keys.fold_in(key, 1)])
    rows = order(both_keys, torch.tensor([10, 3]), steps=6, batch=4, largest=10, smallest=3)
    assert torch.equal(rows[0], table)
    alone = order(both_keys[1], torch.tensor(3), steps=6, batch=4, largest=3, smallest=3)
    assert torch.equal(rows[1], alone)
