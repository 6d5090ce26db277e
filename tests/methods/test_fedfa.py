"""FedFA in whole runs: what the server measures, what travels, each switch, several networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift.methods.fedfa import FedFA
from fedshift.models import Staged
from fedshift.parts.ffa import FFA, beginning, modulation
from tests.methods.test_battery import start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference

PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1)
STEPS = {"a": 4, "b": 2, "c": 3}  # of clients with 17, 9 and 12 samples


@dataclass(frozen=True)
class Watched(FedFA):
    """FedFA, and what came up in each round."""

    seen: ClassVar[list] = []

    def after(self, new, uploads, server, net, key):
        self.seen.append(
            {c: {n: t[k] for n, t in uploads.extras.items()} for k, c in enumerate(uploads.clients)}
        )
        return super().after(new, uploads, server, net, key)


def watch(protocol=PROTOCOL, **options):
    """A run and the uploads of its rounds."""
    Watched.seen.clear()
    run = start(Watched(**options), protocol).play()
    return run, list(Watched.seen)


def model(run) -> dict[str, torch.Tensor]:
    return run.progress.server.model


def differ(a, b) -> float:
    names = [n for n in model(a) if n in model(b) and "fedfa" not in n]
    return max((model(a)[n].double() - model(b)[n].double()).abs().max().item() for n in names)


# -- the server --------------------------------------------------------------------------------


def test_v_is_the_variance_of_the_clients_averages():
    run, seen = watch()
    rows = torch.stack([seen[1][c]["fedfa_conv.average"] for c in "abc"])
    assert rows.shape == (3, 2, 4), "means and standard deviations of four channels"
    v = model(run)["fedfa_conv.variance"]
    assert torch.allclose(v, rows.var(0, correction=0)) and (v > 0).all()
    kept = torch.stack([run.progress.kept[c]["fedfa/fedfa_conv.average"] for c in "abc"])
    assert torch.equal(kept, rows)


def test_v_is_one_in_the_first_round_so_that_gamma_is():
    """One round with any fusion by relative weights is one round with V constant."""
    one = PROTOCOL.replace(rounds=1)
    a, _ = watch(one)
    b, _ = watch(one, fusion="direct")  # V + 1 = gamma + 1 = 2
    assert differ(a, b) == 0
    assert differ(watch()[0], watch(fusion="direct")[0]) > 1e-6


def test_a_single_participant_leaves_v_as_it_was():
    run, seen = watch(PROTOCOL.replace(participation=0.34))
    assert [len(s) for s in seen] == [1, 1]
    assert (model(run)["fedfa_conv.variance"] == 1).all()


def test_scalar_variance_is_one_number_and_takes_the_federation_out():
    run, seen = watch(server_variance="scalar", unbiased=True)
    rows = torch.stack([seen[1][c]["fedfa_conv.average"] for c in "abc"])
    v = model(run)["fedfa_conv.variance"]
    assert torch.allclose(v, rows.var((0, 2)).unsqueeze(1).expand(2, 4))
    # gamma is then 1 however the clients differ
    assert differ(run, watch(unbiased=True)[0]) > 1e-9
    assert (modulation(v) - 1).abs().max() < 1e-12


# -- the clients' averages ---------------------------------------------------------------------


def test_memory_of_the_averages():
    """They obey a_end = alpha^T a_start + what the trip adds, from three different starts."""
    name, begin = "fedfa_conv.average", torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    runs = {m: watch(p=1.0, memory=m) for m in ("client", "reset", "server")}
    first = {m: s[0]["a"][name] for m, (_, s) in runs.items()}
    second = {m: s[1]["a"][name] for m, (_, s) in runs.items()}
    assert torch.equal(first["client"], first["reset"])
    assert torch.equal(first["client"], first["server"])
    mean = torch.stack([s[name] for s in runs["server"][1][0].values()]).mean(0)
    left = 0.99 ** STEPS["a"]
    assert torch.allclose(second["client"] - second["reset"], left * (first["client"] - begin))
    assert torch.allclose(second["server"] - second["reset"], left * (mean - begin))
    after = torch.stack([s[name] for s in runs["server"][1][1].values()]).mean(0)
    assert torch.allclose(model(runs["server"][0])["fedfa_conv.centre"], after)
    assert not any(k for k in runs["reset"][0].progress.kept.values())


def test_momentum_is_the_weight_of_what_was_before():
    """At rate 0, on the whole of its data in each step: m + alpha^2 (start - m) after two steps."""
    still = PROTOCOL.replace(rounds=1, lr=0.0, batch=12, steps=2)
    ends = {}
    for a in (0.0, 0.6):
        Watched.seen.clear()
        method = Watched(p=1.0, momentum=a)
        start(method, still, federation((12, 12))).play()
        ends[a] = Watched.seen[0]["a"]["fedfa_conv.average"]
    begin = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert torch.allclose(ends[0.6], ends[0.0] + 0.6**2 * (begin - ends[0.0]))


def test_every_switch_reaches_the_layers():
    options = {"p": 0.3, "momentum": 0.6, "std": 0.2, "fusion": "direct", "unbiased": True}
    for source in ("both", "client", "random"):
        made = start(FedFA(variance=source, **options)).plan.model.get_submodule("fedfa_conv")
        found = (made.p, made.momentum, made.random_std, made.fusion, made.unbiased, made.source)
        assert found == (*options.values(), source)


def test_averages_move_only_when_a_layer_acts():
    """With momentum 0 the weight of the past is 0 after the first act, and 1 before it."""
    _, always = watch(PROTOCOL.replace(rounds=1), p=1.0, momentum=0.0)
    _, rarely = watch(PROTOCOL.replace(rounds=1), p=1e-6, momentum=0.0)
    (means, stds), (still, unit) = (s[0]["a"]["fedfa_conv.average"] for s in (always, rarely))
    assert (means != 0).all() and (stds != 1).all()
    assert (still == 0).all() and (unit == 1).all()


def test_absent_clients_keep_their_averages():
    run, seen = watch(PROTOCOL.replace(participation=2, rounds=3))
    for client, kept in run.progress.kept.items():
        own = [s[client] for s in seen if client in s]
        expected = own[-1]["fedfa_conv.average"] if own else beginning(torch.empty(2, 4).double())
        assert torch.equal(kept["fedfa/fedfa_conv.average"], expected)


def test_privacy_noise_is_on_what_goes_up_alone():
    run, seen = watch(PROTOCOL.replace(rounds=1), noise=0.3)
    name = "fedfa_conv.average"
    every = torch.cat(
        [(seen[0][c][name] - run.progress.kept[c][f"fedfa/{name}"]).flatten() for c in "abc"]
    )
    assert every.numel() == 3 * 2 * 4 and len(set(every.tolist())) == every.numel()
    assert 0.15 < every.std().item() < 0.45
    assert model(run)["fedfa_conv.variance"].mean() > 0.01, "V is noise's: about 0.09 * 2/3"


# -- what travels ------------------------------------------------------------------------------


def test_sums_give_the_same_variances_as_single_averages():
    long = PROTOCOL.replace(rounds=3)
    alone, _ = watch(long)
    summed, seen = watch(long, statistics="sums")
    own = {n: t for n, t in state(alone).items() if n in state(summed)}
    assert "fedfa_conv.variance" in own
    assert largest_difference(own, {n: state(summed)[n] for n in own}) < 1e-9
    assert run_kinds(summed) == {"sum"} and run_kinds(alone) == {"individual"}
    sent = torch.stack([t for s in seen[2].values() for t in s.values()])
    assert sent.abs().max() < 30, "in units of the spread, no digits are spent on the level"


def run_kinds(run) -> set[str]:
    from fedshift.engines import choice

    player = choice.start(run.plan, run.federation, "loop", 0)
    return set(player.play(run._jobs(run.stages[0], run.progress)).kinds.values())


def test_scalar_variance_from_sums():
    options = {"server_variance": "scalar", "unbiased": True, "memory": "server"}
    a, _ = watch(**options)
    b, _ = watch(statistics="sums", **options)
    for name in ("fedfa_conv.variance", "fedfa_conv.centre"):
        assert (model(a)[name] - model(b)[name]).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{"variance": "client"}, {"variance": "random"}, {"p": 0.0}])
def test_without_the_federation_nothing_is_exchanged(options):
    run, plain = start(FedFA(**options)).play(), start("fedavg").play()
    assert [line["bytes_up"] for line in run.lines] == [line["bytes_up"] for line in plain.lines]
    assert [line["bytes_down"] for line in run.lines] == [
        line["bytes_down"] for line in plain.lines
    ]
    assert (differ(run, plain) > 1e-6) == (options != {"p": 0.0})
    assert not any(run.progress.kept.values())


def extra_bytes(method, network, shape) -> tuple[list[int], list[int]]:
    """Bytes of a client's two rounds beyond FedAvg's, up and down, in float32."""
    (up, down), (base_up, base_down) = sizes(method, network, shape), plain_sizes(network, shape)
    return [a - b for a, b in zip(up, base_up)], [a - b for a, b in zip(down, base_down)]


def sizes(method, network, shape) -> tuple[list[int], list[int]]:
    protocol = fs.Protocol(rounds=2, steps=1, batch=2, eval_every=2)
    fed = federation((4, 4), shape)
    run = fs.Run(fed, method, protocol, network, engine="loop", workers=1, device="cpu").play()
    own = [line for line in run.lines if line["client"] == "a"]
    return [line["bytes_up"] for line in own], [line["bytes_down"] for line in own]


@cache
def plain_sizes(network, shape) -> tuple[list[int], list[int]]:
    return sizes(fs.methods.FedAvg(), network, shape)


class Channels(Staged):
    """The channels of AlexNet's five convolutional stages, in 1 x 1 kernels, and a dense stage."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [1, 64, 192, 384, 256, 256]
        self.stages = (*(f"conv{i + 1}" for i in range(5)), "fc")
        for stage, inputs, outputs in zip(self.stages, sizes, sizes[1:]):
            self.add_module(stage, nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.ReLU()))
        self.fc = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 8))
        self.head = nn.Linear(8, CLASSES)


SMALL = (1, 2, 2)


def test_bytes_of_statistics_for_the_channels_of_alexnet():
    """Two statistics of 1152 channels in four bytes each way: 9 KiB up, 9 down, together 18."""
    assert sum([64, 192, 384, 256, 256]) == 1152
    up, down = extra_bytes(FedFA(), Channels, SMALL)
    assert up == down == [2 * 1152 * 4] * 2
    assert up[0] + down[0] == 18 * 1024


def test_bytes_of_sums():
    """Sums and sums of squares up, variances and centres down: twice as much."""
    up, down = extra_bytes(FedFA(statistics="sums"), Channels, SMALL)
    assert up == down == [4 * 1152 * 4] * 2


# -- networks ----------------------------------------------------------------------------------


class UNet(Staged):
    """Four pools and a bottleneck with the channels 32 … 512; the first skip leaves before pooling.

    What it ends in (a mean instead of a mask) does not matter here.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = [1, 32, 64, 128, 256, 512]
        self.stages = ("pool1", "pool2", "pool3", "pool4", "bottleneck")
        for i in range(4):
            self.add_module(
                f"block{i + 1}", nn.Sequential(nn.Conv2d(sizes[i], sizes[i + 1], 1), nn.ReLU())
            )
            self.add_module(f"pool{i + 1}", nn.MaxPool2d(2))
        self.bottleneck = nn.Sequential(nn.Conv2d(256, 512, 1), nn.ReLU())
        self.join1 = nn.Conv2d(32 + 512, 8, 1)
        self.head = nn.Linear(8, CLASSES)

    def features(self, x):
        h = skip = self.block1(x)
        for i in range(1, 5):
            h = getattr(self, f"pool{i}")(h)
            h = getattr(self, f"block{i + 1}")(h) if i < 4 else self.bottleneck(h)
        wide = h.repeat_interleave(16, 2).repeat_interleave(16, 3)
        return self.join1(torch.cat([skip, wide], 1)).mean((2, 3))


def test_the_u_net_s_skips_are_not_augmented_and_its_bytes():
    """4 x 992 channels x 4 bytes = 15.5 KiB both ways."""
    up, down = extra_bytes(FedFA(), UNet, (1, 32, 32))
    assert up[0] + down[0] == 4 * (32 + 64 + 128 + 256 + 512) * 4 == 15.5 * 1024
    fed = federation((4, 4), (1, 32, 32))
    plan = fs.Run(fed, FedFA(p=1.0), fs.Protocol(batch=2), UNet, device="cpu").plan
    net = plan.model.train()
    into: list[torch.Tensor] = []
    net.join1.register_forward_pre_hook(lambda m, args: into.append(args[0]))
    x = fed["a"].train.x[:3].float()
    net.features(x)
    clean = net.block1(x)
    assert torch.equal(into[0][:, :32], clean)
    assert not torch.allclose(net.pool1(clean), nn.functional.max_pool2d(clean, 2))


class Tokens(Staged):
    """Four patches as tokens [B, 4, 6], mixed, then pooled to a vector."""

    stages = ("patches", "mix")

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Conv2d(1, 6, 3, stride=3), nn.Flatten(2), Swap())
        self.mix = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
        self.head = nn.Linear(6, CLASSES)

    def join(self, x):
        return x.mean(1)


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def test_tokens_on_both_engines():
    fed = federation()
    runs = [
        fs.Run(fed, FedFA(), PROTOCOL, Tokens, engine=e, dtype="float64", device="cpu").play()
        for e in ("loop", "stacked")
    ]
    assert largest_difference(state(runs[0]), state(runs[1])) < 1e-9
    layers = [m for m in runs[0].plan.model.modules() if isinstance(m, FFA)]
    assert [tuple(m.variance.shape) for m in layers] == [(2, 6), (2, 6)]


def test_layers_by_name_number_and_all():
    def inserted(text):
        run = start(FedFA(layers=text))
        return sorted(n for n, m in run.plan.model.named_modules() if isinstance(m, FFA))

    assert inserted("maps") == inserted("1") == inserted("conv") == ["fedfa_conv"]
    assert inserted("all") == ["fedfa_conv", "fedfa_hidden"]
    assert inserted("hidden") == ["fedfa_hidden"]
    run, seen = watch(layers="all")
    # a stage of vectors has one position, hence no standard deviation to exchange
    shapes = {n: tuple(t.shape) for n, t in seen[0]["a"].items()}
    assert shapes == {"fedfa_conv.average": (2, 4), "fedfa_hidden.average": (1, 8)}
    assert differ(run, watch()[0]) > 1e-6
    with pytest.raises(fs.FedshiftError, match="conv"):
        inserted("konv")
    with pytest.raises(fs.FedshiftError, match="no stage of the model gives maps"):
        fs.Run(federation(), "fedfa", PROTOCOL, "mlp", device="cpu")


# -- scores and compositions -------------------------------------------------------------------


def test_there_is_one_model_and_an_unseen_site_gets_it():
    run = start("fedfa", hold_out=("c",)).play()
    scores = {s["client"]: s for s in run.lines[-4:] if s["client"]}
    assert scores["c"]["role"] == "unseen" and scores["c"]["test"] is not None
    assert all(s["personal_test"] is None for s in scores.values())


@pytest.mark.parametrize("name", ["fedfa+mixup", "fedfa+fedbn"])
def test_compositions_on_both_engines(name):
    a, b = start(name).play(), start(name, engine="stacked").play()
    assert largest_difference(state(a), state(b)) < 1e-9
    assert differ(a, start("fedfa").play()) > 1e-6


def test_equal_stages_get_names_without_dots():
    class Nested(ToyNet):
        stages = ("conv.0", "hidden")

        def features(self, x):
            return self.hidden(self.conv(x))

    fed = federation()
    run = fs.Run(fed, FedFA(), PROTOCOL, Nested, dtype="float64", device="cpu")
    assert "fedfa_conv_0.variance" in run.plan.names("down")
