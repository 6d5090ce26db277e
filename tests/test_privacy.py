"""Clipping and noise: norms, variances, engines, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import fedshift as fs
from fedshift import keys, noising, sealed, tree
from fedshift.aggregate import absorb
from fedshift.engines import choice
from fedshift.errors import BadRun, BadValue, CannotCombine
from fedshift.hparam import hp
from fedshift.method import Method, Report, State
from fedshift.privacy import Privacy
from fedshift.run import Run
from fedshift.trip import Result
from tests.methods.test_battery import PROTOCOL, make, state
from tests.toys import ToyNet, federation, largest_difference


class NoNorm(ToyNet):
    """A network without buffers."""

    def __init__(self) -> None:
        super().__init__(norm=False)


def start(name="fedavg", private=None, protocol=PROTOCOL, fed=None, model=NoNorm, **options) -> Run:
    """A run in float64."""
    options = {"engine": "loop", "workers": 1, "dtype": "float64", **options}
    options.setdefault("warn", lambda message: None)
    return Run(
        fed or federation(),
        make(name) if isinstance(name, str) else name,
        protocol,
        model,
        device="cpu",
        privacy=private,
        **options,
    )


def trip(run: Run) -> tuple[Result, dict[str, torch.Tensor]]:
    """What comes back of the first round, and the model that went out."""
    jobs = run._jobs(run.stages[0], run.progress)
    engine = choice.start(run.plan, run.federation, run.engine_name, 0)
    return engine.play(jobs), jobs[0].model


def distances(result: Result, sent: dict[str, torch.Tensor]) -> torch.Tensor:
    """Each client's distance to the model that it received, in float64."""
    parts = [(t.double() - sent[n].double()).flatten(1) for n, t in result.model.items()]
    return torch.cat(parts, dim=1).norm(dim=1)


# ---------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_huge_update_leaves_with_the_norm_of_the_clip_at_most(engine, dtype):
    wild = PROTOCOL.replace(lr=50.0)
    options = {"protocol": wild, "engine": engine, "dtype": dtype}
    assert bool((distances(*trip(start(**options))) > 10).all())
    for clip in (0.01, 1.0):
        norms = distances(*trip(start(private=Privacy(clip=clip, noise=0), **options)))
        assert bool((norms <= clip).all()), norms
        assert bool((norms > 0.999 * clip).all()), norms


def test_the_norm_holds_after_rounding_whatever_the_numbers_are():
    private = Privacy(clip=0.3, noise=0)
    for k in range(50):
        key = keys.as_tensor(k)
        origin = 100 * keys.normal(key, (1, 997))
        moved = origin + keys.normal(keys.fold_in(key, "to"), (2, 997))
        kept, _ = noising.leave(private, {"w": moved}, {}, {"w": origin}, ("w",), key.expand(2))
        norms = (kept["w"].double() - origin.double()).norm(dim=1)
        assert bool((norms <= 0.3).all()) and bool((norms > 0.2995).all())


def test_a_small_update_leaves_as_it_is():
    free, bound = start(), start(private=Privacy(clip=1e3, noise=0))
    free.play()
    bound.play()
    assert largest_difference(state(free), state(bound)) < 1e-12


def test_what_two_vectors_hold_is_clipped_one_by_one():
    """(3, 4) and 12 make one vector of norm 13: at a clip of 6.5 they halve; extras stand apart."""
    private = Privacy(clip=6.5, noise=0, clip_extras=1.0)
    model = {"a": torch.tensor([[3.0, 4.0]]).double(), "b": torch.tensor([12.0]).double()}
    received = {n: torch.zeros_like(t) for n, t in model.items()}
    extras = {"m/x": torch.tensor([[0.0, -2.0]]).double()}
    up, beside = noising.leave(
        private, model, extras, received, ("a", "b"), keys.as_tensor(0).reshape(1)
    )
    assert torch.allclose(up["a"], torch.tensor([[1.5, 2.0]]).double())
    assert torch.allclose(up["b"], torch.tensor([6.0]).double())
    assert torch.allclose(beside["m/x"], torch.tensor([[0.0, -1.0]]).double())


@dataclass(frozen=True)
class Broken(Method):
    """Client b comes to NaN in every step."""

    name: ClassVar[str] = "broken"

    def broadcast(self, server, client, round):
        return State({}, {"bad": float(client == "b")})

    def correct(self, grads, params, ctx):
        return {n: torch.where(ctx.received["bad"] > 0, torch.nan, g) for n, g in grads.items()}


@pytest.mark.parametrize("where", ["central", "local"])
def test_a_client_at_nan_counts_as_one_that_did_not_move(where):
    private = Privacy(clip=0.1, noise=0, where=where)
    run = start(Broken(), private)
    result, sent = trip(run)
    norms = distances(result, sent)
    assert norms[1] == 0 and norms[0] > 0 and norms[2] > 0
    line = run.play().lines[-1]
    assert line["left_out"] == {} and tree.finite(run.progress.server.model)


def test_what_a_client_keeps_goes_back_when_it_breaks():
    run = start(fs.methods.FedBN() + Broken(), Privacy(noise=0), model=ToyNet, warn=print)
    before = run.progress.kept["b"]
    run.play()
    assert run.lines[-1]["left_out"] == {}
    assert tree.digest(run.progress.kept["b"]) == tree.digest(before)


# ---------------------------------------------------------------------------- noise


class Still(Method):
    """Nobody moves, so that what arrives is noise alone."""

    name: ClassVar[str] = "still"

    def correct(self, grads, params, ctx):
        return {n: 0 * g for n, g in grads.items()}


class Wide(fs.models.Staged):
    """Many parameters, for statistics."""

    stages = ("flat",)

    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3000))
        self.head = torch.nn.Linear(3000, 3)


def spread(values: torch.Tensor) -> tuple[float, float, float]:
    """Mean, standard deviation and kurtosis of many numbers."""
    z = values.double().flatten()
    std = z.std().item()
    return z.mean().item(), std, (((z - z.mean()) / std) ** 4).mean().item()


def check_normal(values: torch.Tensor, std: float) -> None:
    """Within five standard errors of a normal distribution's mean, deviation and kurtosis."""
    n = values.numel()
    mean, found, kurtosis = spread(values)
    assert n > 1e5
    assert abs(mean) < 5 * std / math.sqrt(n)
    assert abs(found / std - 1) < 5 / math.sqrt(2 * n)
    assert abs(kurtosis - 3) < 5 * math.sqrt(24 / n)


@pytest.mark.parametrize("source", ["seed", "system"])
def test_local_noise_has_its_variance_and_is_each_clients_own(source):
    private = Privacy(clip=0.5, noise=1.4, where="local", source=source)
    result, sent = trip(start(Still(), private, model=Wide))
    noise = torch.cat([(t - sent[n]).flatten(1) for n, t in result.model.items()], dim=1)
    for row in noise:
        check_normal(row, 1.4 * 0.5)
    n = noise.shape[1]
    between = torch.corrcoef(noise)
    assert bool((between - torch.eye(3)).abs().max() < 5 / math.sqrt(n))
    check_normal(noise.mean(dim=0), 0.7 / math.sqrt(3))


@pytest.mark.parametrize("source", ["seed", "system"])
def test_central_noise_is_of_the_sum_so_the_mean_has_it_by_the_number_of_clients(source):
    private = Privacy(clip=0.5, noise=1.4, source=source)
    run = start(Still(), private, model=Wide)
    result, sent = trip(run)
    assert bool((distances(result, sent) == 0).all()), "clients add none"
    server = absorb(run.plan, run.progress.server, result, {"a": 1, "b": 1, "c": 1}, 0, 9)
    noise = torch.cat([(t - sent[n]).flatten() for n, t in server.model.items()])
    check_normal(noise, 1.4 * 0.5 / 3)


def test_two_vectors_share_the_budget():
    """Each gets noise times sqrt(2), so that (C/s)^2 + (E/s')^2 = 1/z^2 as for a single one."""
    private = Privacy(clip=0.5, noise=1.4, clip_extras=3.0)
    s, e = noising.deviation(private, 0.5, 2), noising.deviation(private, 3.0, 2)
    assert (0.5 / s) ** 2 + (3.0 / e) ** 2 == pytest.approx(1 / 1.4**2)
    big = torch.zeros(1, 400_000, dtype=torch.float64)
    key = keys.as_tensor(0).reshape(1)
    local = dataclasses.replace(private, where="local")
    up, beside = noising.leave(local, {"w": big}, {"m/x": big}, {"w": big}, ("w",), key)
    check_normal(up["w"], s)
    check_normal(beside["m/x"], e)
    kinds = {"m/x": "sum", "m/y": "mean"}
    means, combined = noising.central(
        private, {"w": big[0]}, {"m/x": big[0], "m/y": big[0]}, kinds, ("w",), 4, key
    )
    check_normal(means["w"], s / 4)
    check_normal(combined["m/x"], e)
    check_normal(combined["m/y"], e / 4)


def test_noise_differs_by_round_client_and_tensor_and_the_systems_every_time():
    private = Privacy(noise=1.0, where="local")
    a, b = (start(Still(), private).play() for _ in range(2))
    assert tree.digest(state(a)) == tree.digest(state(b))
    other = start(Still(), private, seed=1).play()
    assert tree.digest(state(a)) != tree.digest(state(other))
    system = dataclasses.replace(private, source="system")
    a, b = (start(Still(), system).play() for _ in range(2))
    assert largest_difference(state(a), state(b)) > 0.1
    assert not torch.equal(noising.system_normal((5,)), noising.system_normal((5,)))


# ---------------------------------------------------------------------------- engines, resumption

EXTRAS = {"clip_extras": 1.0}


@pytest.mark.parametrize("where", ["central", "local"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedavgm+mixup"])
@pytest.mark.parametrize("participation", [1.0, 2])
def test_stacked_equals_loop(name, where, participation):
    private = Privacy(clip=0.2, noise=0.3, where=where, **EXTRAS)
    protocol = PROTOCOL.replace(participation=participation)
    loop = start(name, private, protocol).play()
    for options in ({}, {"chunk": 2}):
        stacked = start(name, private, protocol, engine="stacked", **options).play()
        assert largest_difference(state(loop), state(stacked)) < 1e-9


@pytest.mark.parametrize("where", ["central", "local"])
def test_workers_equal_the_loop_to_the_bit(where):
    data = fs.data.load("shifted-digits")
    protocol = fs.Protocol(rounds=2, steps=2, batch=8)
    private = Privacy(clip=0.2, noise=0.3, where=where, **EXTRAS)
    one, two = (
        Run(data, "scaffold", protocol, "mlp", privacy=private, device="cpu", engine="loop", **w)
        for w in ({"workers": 1}, {"workers": 2})
    )
    assert tree.digest(state(one.play())) == tree.digest(state(two.play()))


@pytest.mark.parametrize("where", ["central", "local"])
def test_resumed_equals_uninterrupted(where, tmp_path):
    protocol = PROTOCOL.replace(rounds=3, participation=2)
    private = Privacy(clip=0.2, noise=2.0, where=where)
    whole = start(private=private, protocol=protocol, out=tmp_path / "whole").play()

    class Stop(Exception):
        pass

    def stop(run, line):
        if line["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        start(private=private, protocol=protocol, out=tmp_path / "cut").play(stop)
    again = Run.resume(
        tmp_path / "cut", federation(), NoNorm, method=make("fedavg"), warn=lambda message: None
    ).play()
    assert again.plan.privacy == private
    assert tree.digest(state(again)) == tree.digest(state(whole))

    def timeless(run):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines]

    assert timeless(again) == timeless(whole)


def test_without_it_nothing_is_said_of_it(tmp_path):
    start(out=tmp_path / "run").play()
    text = (tmp_path / "run" / "config.toml").read_text()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "[privacy]" not in text and "epsilon" not in lines


def test_local_clients_tell_no_losses():
    assert start(private=Privacy(where="local")).play().lines[-1]["loss"] is None
    assert start(private=Privacy()).play().lines[-1]["loss"] is not None


# ---------------------------------------------------------------------------- refusals


@dataclass(frozen=True)
class Reports(Method):
    """Uploads one number beside the model."""

    name: ClassVar[str] = "reports"
    kind: str = hp("mean", "how", choices=("mean", "sum", "individual", "whole", "twice"))

    def report(self, ctx, net, data):
        value = ctx.lr.reshape(1)
        if self.kind == "whole":
            return Report(sum={"n": ctx.samples.reshape(1)})
        kind = "mean" if self.kind == "twice" else self.kind
        return Report(**{kind: {"n": value}})

    def combine_extra(self, name, stacked, weights):
        return 2 * stacked.mean(0) if self.kind == "twice" else None


@dataclass(frozen=True)
class Looks(Method):
    """The server looks at single models from some round on, and says so nowhere."""

    name: ClassVar[str] = "looks"
    rounds: int = hp(0, "how many it does not look at")

    def after(self, new, uploads, server, net, key):
        if uploads.round < self.rounds:
            return new, server
        assert {n: t.shape[1:] for n, t in uploads.model.items()} == {
            n: t.shape for n, t in new.items()
        }
        return {n: torch.median(t, dim=0).values for n, t in uploads.model.items()}, server


CENTRAL = Privacy(clip_extras=1.0)
LOCAL = Privacy(where="local", clip_extras=1.0)


@pytest.mark.parametrize(
    ("name", "private", "options", "words"),
    [
        ("fedavg", CENTRAL, {"model": ToyNet}, "'conv.1.running_mean' of the model is uploaded"),
        ("fedavg", LOCAL, {"model": ToyNet}, "as fedbn does"),
        ("fedavg", LOCAL, {"protocol": PROTOCOL.replace(weights="samples")}, "--weights uniform"),
        ("centralized", CENTRAL, {}, "no clients to protect"),
        ("scaffold", Privacy(), {}, "'scaffold/conv.0.bias' is uploaded beside the model"),
        ("scaffold", Privacy(where="local"), {}, "--dp-clip-extras"),
        ("fedcm", CENTRAL, {}, "'fedcm' uploads 'fedcm/way' for the server to look at one by one"),
        ("fedgenp", CENTRAL, {}, "'fedgenp': the server's part of the method looks at what single"),
        ("importance", CENTRAL, {}, "'importance' weights single elements by client"),
        (Reports("individual"), CENTRAL, {}, "'reports/n'"),
        (Reports("whole"), LOCAL, {}, "'reports/n' is uploaded in whole numbers"),
        (Looks(), CENTRAL, {}, "--dp-where local"),
        (Reports("twice"), CENTRAL, {}, "combines 'reports/n' by a rule of its own"),
    ],
)
def test_what_it_cannot_cover_is_refused_before_the_run(name, private, options, words):
    with pytest.raises((BadRun, BadValue, CannotCombine)) as caught:
        start(name, private, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_a_server_looks_at_later_is_refused_in_that_round():
    run = start(Looks(rounds=1), CENTRAL)
    with pytest.raises(BadRun, match="single clients"):
        run.play()
    assert run.progress.done == 1
    start(Looks(), LOCAL).play()


def test_what_is_sealed_has_a_shape_and_nothing_else():
    tensor = sealed.seal({"w": torch.ones(3, 2)})["w"]
    assert tensor.shape == (3, 2) and len(tensor) == 3 and tensor.dtype == torch.float32
    weights = torch.ones(3)
    for look in (
        lambda: tensor + 1,
        lambda: torch.tensordot(weights, tensor, dims=1),
        lambda: weights @ tensor,
        lambda: tensor.tolist(),
        lambda: tensor[0],
        lambda: torch.stack([tensor]),
        lambda: bool((tensor > 0).all()),
        lambda: tensor.numpy(),
        lambda: tensor.data,
        lambda: weights.copy_(tensor[:, 0]),
    ):
        with pytest.raises(sealed.Looked):
            look()


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("private", [CENTRAL, LOCAL])
def test_means_and_sums_are_covered(kind, private):
    start(Reports(kind), private).play()


@pytest.mark.parametrize("name", ["fedcm", "fedbn+fedcm", "importance"])
def test_clients_that_add_the_noise_may_be_looked_at(name):
    start(name, dataclasses.replace(LOCAL, noise=1e-6, clip=10.0, clip_extras=100.0)).play()


def test_fedbn_keeps_what_privacy_cannot_cover():
    run = start("fedbn", Privacy(noise=0.1), model=ToyNet).play()
    assert not any("norm" in n or ".1." in n for n in run.plan.up)


def test_a_clip_below_rounding_is_refused():
    with pytest.raises(BadRun, match="lost in the rounding"):
        start(private=Privacy(clip=1e-9), dtype="float32").play()


@pytest.mark.parametrize(
    "values",
    [
        {"clip": 0},
        {"clip": -1},
        {"noise": -1},
        {"delta": 0},
        {"delta": 1},
        {"where": "here"},
        {"source": "moon"},
    ],
)
def test_bad_values(values):
    with pytest.raises(BadValue, match=f"privacy.{next(iter(values))}"):
        Privacy(**values)


def test_it_is_json_and_toml():
    assert Privacy(**json.loads(json.dumps(dataclasses.asdict(CENTRAL)))) == CENTRAL
