"""FedLSI: its stages and what crosses in each, its loss by hand, every part switched off alone."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift import keys, methods
from fedshift.aggregate import absorb, only
from fedshift.engines import choice
from fedshift.errors import BadValue
from fedshift.federation import Facts
from fedshift.methods.fedlsi import change
from fedshift.parts.gan import StarGAN, translate, translator
from fedshift.parts.inversion import Inversion
from fedshift.tree import digest, under
from tests.methods.test_battery import PROTOCOL, make, start, state
from tests.methods.test_importance import uneven
from tests.toys import ToyNet, federation, largest_difference

FedLSI = methods.method_class("fedlsi")
QUICK = make("fedlsi").parts[0]
SHORT = PROTOCOL.replace(rounds=1)


def quick(**settings):
    return dataclasses.replace(QUICK, **{"inversion_steps": 10, "gan_steps": 10, **settings})


def difference(a, b):
    """Between the global models of two runs of one round."""
    ends = [start(m, SHORT).play().progress.server.model for m in (a, b)]
    return largest_difference(*ends)


def ends(run):
    return [line for line in run.lines if line["client"] is None]


# -- the network -------------------------------------------------------------------------------


class Wide(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(512, classes)


@pytest.mark.parametrize("classes, size", [(65, 33_345), (7, 3_591)])
def test_heads_of_the_papers(classes, size):
    """512 x 65 + 65, and 512 x 7 + 7. An affine norm would add 1,024 (34,369 for 65 classes)."""
    facts = Facts("classification", classes, (3, 224, 224), ("a", "b", "c"), width=512)
    head = FedLSI().build(Wide(classes), facts).head
    assert sum(p.numel() for p in head.parameters()) == size
    assert list(head) == [head.norm, head.layer], "the norm comes first"
    assert head.norm.running_mean.shape == (512,)


def test_defaults_are_the_papers():
    """Those that the paper or, where it is silent, its code gives."""
    told = {
        "weight": 1.0,
        "distance": "mean",
        "warmup_epochs": 30,
        "inversion_batches": 200,
        "inversion_batch": 32,
        "inversion_steps": 10_000,
        "inversion_lr": 1e-4,
        "inversion_task": 1.0,
        "inversion_statistics": 1e-3,
        "inversion_length": 1e-4,
        "inversion_squared": True,
        "inversion_frozen": True,
        "inversion_carried": False,
        "gan_kind": "wgan-gp",
        "gan_hidden": 1024,
        "gan_bounded": True,
        "gan_steps": 10_000,
        "gan_batch": 16,
        "gan_lr": 1e-4,
        "gan_every": 5,
        "gan_domain": 1.0,
        "gan_cycle": 10.0,
        "gan_penalty": 10.0,
        "gan_label": 0.1,
        "gan_mixed": False,
        "gan_one_class": False,
        "importance_group": 32,
        "importance_norm": "squared",
        "importance_encoder": "logits",
    }
    method = FedLSI()
    assert {n: getattr(method, n) for n in told} == told
    assert method.translator and method.importance and method.head_norm
    assert Inversion(**method._of("inversion")) == Inversion(), "parts have the same defaults"
    assert StarGAN(**method._of("gan")) == StarGAN() and StarGAN().dropout == 0.5


def test_the_papers_latents():
    """200 batches of 32, of 512 numbers each, for 3 clients: the 9.8 million of its table."""
    method = FedLSI()
    assert method.inversion_batches * method.inversion_batch * 512 * 3 == 9_830_400


def test_the_head_keeps_the_contract():
    model = start(QUICK).plan.model
    x = torch.rand(5, 1, 6, 6).double()
    model.eval()
    assert torch.equal(model(x), model.head(model.features(x)))
    assert "head.norm.running_mean" in model.state_dict()
    bare = start(quick(head_norm=False, inversion_statistics=0.0)).plan.model
    assert isinstance(bare.head, nn.Linear)
    adapted = fs.models.adapt(ToyNet(), ("conv", "hidden"), "head")
    facts = Facts("classification", 3, (1, 6, 6), ("a",), width=8)
    built = QUICK.build(adapted, facts).eval()
    assert torch.allclose(built.float()(x.float()), built.original()(x.float()))


def test_refusals():
    with pytest.raises(BadValue, match="no statistics to match: set inversion_statistics to 0"):
        FedLSI(head_norm=False)
    with pytest.raises(BadValue, match="no statistics to match"):
        FedLSI(head_norm=False, inversion_statistics=0.0, inversion_frozen=False)
    assert not FedLSI(head_norm=False, translator=False).head_norm


# -- stages ------------------------------------------------------------------------------------


def test_stages():
    found = FedLSI().stages(PROTOCOL)
    assert [(s.name, s.program, s.everyone, s.epochs) for s in found] == [
        ("warm-up", "visit", True, 30),
        ("translator", "collect", True, 0),
        ("train", "train", False, 0),
    ]
    for off in ({"translator": False}, {"weight": 0.0}):
        assert [s.name for s in FedLSI(**off).stages(PROTOCOL)] == ["train"]


def test_what_crosses_in_each_stage():
    """In float64: 8 features, 3 classes and 3 clients; the quick translator has 32 units."""
    run = start(quick(), PROTOCOL.replace(participation=2)).play()
    lines = ends(run)
    assert [line["stage"] for line in lines] == ["warm-up", "translator", "train", "train"]
    assert [len(line["participants"]) for line in lines] == [3, 3, 2, 2]
    head = 8 * 3 + 3 + 8 + 8
    assert lines[0]["bytes_up"] == 3 * 8 * head and lines[1]["bytes_up"] == 0
    size = 8 * sum(t.numel() for t in translator(8, 3, 32).values())
    each = [line["bytes_down"] / len(line["participants"]) for line in lines]
    assert each[1] - each[0] == size + 8, "the translator and the client's number"
    assert each[0] == each[2] == each[3]
    trained = sum(p.numel() for p in run.plan.model.parameters())
    whole = sum(t.numel() for t in run.plan.model.state_dict().values())
    assert lines[2]["bytes_up"] == 2 * 8 * (trained + whole)


def after_warm_up(run):
    """The run once the heads have come, and the translator that the server made of them."""
    run._engine = choice.start(run.plan, run.federation, "loop", 0)
    run.play_round()
    return run, under("translator", run.progress.server.methods["fedlsi"].tensors)


def test_every_client_keeps_the_translator_and_its_own_domain():
    fed = federation()
    turned = fs.Federation(fed.name, fed.clients[::-1], fed.classes, fed.pipeline)
    for each in (fed, turned):
        run, made = after_warm_up(start(quick(), SHORT, fed=each))
        assert {n: t.shape for n, t in made.items()} == {
            n: t.shape for n, t in translator(8, 3, 32).items()
        }
        run.play_round()
        assert not run.progress.server.methods["fedlsi"].tensors, "the server keeps nothing of it"
        for number, client in enumerate("abc"):
            kept = under("fedlsi", run.progress.kept[client])
            assert kept["domain"] == number, "in the order of names, not of the federation"
            assert largest_difference(under("translator", kept), made) == 0


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("stage", ["warm-up", "translator", "train"])
def test_resumed_behind_any_stage_it_ends_in_the_same_bits(stage, engine, tmp_path):
    class Stop(Exception):
        pass

    def stop(run, line):
        if line["stage"] == stage:
            raise Stop

    whole = start(quick(), engine=engine).play()
    with pytest.raises(Stop):
        start(quick(), engine=engine, out=tmp_path).play(stop)
    again = fs.Run.resume(
        tmp_path, federation(), ToyNet, method=quick(), warn=lambda message: None
    ).play()
    assert digest(state(again)) == digest(state(whole))


@pytest.mark.parametrize("labels", ["uniform", "client"])
def test_one_class_few_samples_absent_classes(labels):
    method, protocol = quick(inversion_labels=labels), PROTOCOL.replace(participation=2)
    loop = start(method, protocol, fed=uneven()).play()
    stacked = start(method, protocol, fed=uneven(), engine="stacked").play()
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    assert all(torch.isfinite(t).all() for t in state(loop).values() if t.is_floating_point())
    assert loop.lines[-1]["loss"]["invariance"] > 0


def test_the_warm_up_leaves_the_model_alone():
    run = start(quick(), SHORT)
    run._engine = choice.start(run.plan, run.federation, "loop", 0)
    before = {n: t.clone() for n, t in run.progress.server.model.items()}
    for _ in range(2):
        run.play_round()
    assert largest_difference(run.progress.server.model, before) == 0


def test_heads_of_the_clients_that_are_left():
    """A client whose head does not count leaves its domain empty, and the rest unmoved."""
    run = start(quick(), SHORT)
    player = choice.start(run.plan, run.federation, "loop", 0)
    result = player.play(run._jobs(run.stages[0], run.progress))
    method, server = run.method, run.progress.server
    both = []
    for keep in ([True, True, True], [True, False, True]):
        state = absorb(run.plan, server, only(result, keep), run._samples, 0, 7, "warm-up")
        both.append(state.methods["fedlsi"])
        payload = method.broadcast(state.methods, "c", 0)
        assert payload.numbers == {"fedlsi/domain": 2}
    assert {n: t.shape for n, t in both[0].tensors.items()} == {
        n: t.shape for n, t in both[1].tensors.items()
    }
    assert largest_difference(dict(both[0].tensors), dict(both[1].tensors)) > 1e-6


# -- the loss ----------------------------------------------------------------------------------


def test_change_by_hand():
    """Squared changes .25 + 1, 1 + 0 and 4 + 9 of three latents: 15.25 over 3 and over 6."""
    z = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0]])
    moved = torch.tensor([[0.5, 1.0], [2.0, 2.0], [0.0, 1.0]])
    assert change(z, moved, "sum").item() == pytest.approx(5.083333, abs=5e-7)
    assert change(z, moved).item() == pytest.approx(2.541667, abs=5e-7)


def loss_of(method, z, kept, key=3):
    ctx = SimpleNamespace(
        kept=kept,
        key=keys.as_tensor(key),
        facts=Facts("classification", 3, (1, 6, 6), ("a", "b", "c"), width=8),
    )
    return method.loss(SimpleNamespace(z=z), None, ctx, None)


def test_the_loss_flows_through_the_latent_and_its_translation():
    torch.manual_seed(0)
    t = translator(8, 3, 16)
    kept = {f"translator/{n}": p for n, p in t.items()} | {"domain": torch.tensor(2)}
    z = torch.randn(300, 8, requires_grad=True)
    terms = loss_of(QUICK, z, kept)
    target = keys.integers(keys.fold_in(keys.as_tensor(3), "domain"), 3, (300,))
    assert (torch.bincount(target, minlength=3) > 60).all(), "its own domain is drawn too"
    moved = translate(t, z, torch.full((300,), 2), target)
    wanted = (z - moved).square().mean()
    assert set(terms) == {"invariance"} and torch.allclose(terms["invariance"], wanted)
    found, expected = (torch.autograd.grad(v, z)[0] for v in (terms["invariance"], wanted))
    one_sided = torch.autograd.grad((z - moved.detach()).square().mean(), z)[0]
    assert torch.allclose(found, expected) and not torch.allclose(found, one_sided)
    ten = loss_of(quick(weight=10.0), z, kept)["invariance"]
    total = loss_of(quick(distance="sum"), z, kept)["invariance"]
    assert torch.allclose(ten, 10 * wanted) and torch.allclose(total, 8 * wanted)
    free = loss_of(quick(gan_bounded=False), z, kept)["invariance"]
    assert not torch.allclose(free, wanted)
    assert loss_of(QUICK, z, {}) == {}, "no translator, no loss"


# -- switches ----------------------------------------------------------------------------------


def test_the_four_rows_of_the_ablation_differ():
    """Table IV: with and without the translator, with and without importances."""
    rows = [
        start(quick(translator=t, importance=i), SHORT).play()
        for t in (False, True)
        for i in (False, True)
    ]
    models = [run.progress.server.model for run in rows]
    for k, a in enumerate(models):
        assert all(largest_difference(a, b) > 1e-5 for b in models[:k])
    terms = [set(run.lines[-1]["loss"]) for run in rows]
    assert terms[0] == terms[1] == {"task"} and terms[2] == terms[3] == {"task", "invariance"}
    norm = start(fs.methods.FedAvg(), SHORT).play()
    assert ends(rows[0])[-1]["bytes_up"] - ends(norm)[-1]["bytes_up"] == 3 * 8 * (8 + 8 + 1)


def test_without_the_translator_nothing_of_it_is_left():
    run = start(quick(translator=False)).play()
    assert not run.progress.server.methods["fedlsi"].numbers
    assert not any(name.startswith("fedlsi/") for name in run.progress.kept["a"])
    assert difference(quick(translator=False), quick(weight=0.0)) == 0


def test_importances_are_those_of_the_method_of_that_name():
    """Without translator and norm, FedLSI is importance-weighted FedAvg."""
    settings = {"group": 4, "norm": "plain", "encoder": "features"}
    bare = {"translator": False, "head_norm": False}
    named = {f"importance_{n}": v for n, v in settings.items()}
    assert difference(FedLSI(**bare), methods.method_class("importance")()) == 0
    assert difference(FedLSI(**bare, **named), methods.method_class("importance")(**settings)) == 0
    for name, value in named.items():
        assert difference(FedLSI(**bare, **{name: value}), FedLSI(**bare)) > 1e-7


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup_epochs": 2},
        {"inversion_batches": 3},
        {"inversion_batch": 16},
        {"inversion_labels": "client"},
        {"inversion_steps": 5},
        {"inversion_lr": 0.01},
        {"inversion_task": 0.0},
        {"inversion_statistics": 0.0},
        {"inversion_length": 0.0},
        {"inversion_squared": False},
        {"inversion_frozen": False},
        {"inversion_carried": True},
        {"gan_kind": "vanilla"},
        {"gan_hidden": 16},
        {"gan_steps": 5},
        {"gan_batch": 8},
        {"gan_lr": 1e-2},
        {"gan_every": 2},
        {"gan_domain": 0.0},
        {"gan_cycle": 0.0},
        {"gan_penalty": 0.0},
        {"gan_label": 0.0},
        {"gan_mixed": True},
        {"gan_one_class": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_every_size_and_loss_of_the_server_reaches_the_translator(settings):
    assert handed_out(quick(**settings)) != handed_out(quick())


@functools.cache
def handed_out(method):
    """The sums of the translator's tensors, in every digit."""
    run = start(method, SHORT)
    return [t.double().sum().item() for t in after_warm_up(run)[1].values()]


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "scaffold", "pfedavg"])
def test_compositions_agree_on_both_engines(other):
    method = methods.make(other) + quick()
    loop = start(method).play()
    stacked = start(method, engine="stacked").play()
    assert largest_difference(state(loop), state(stacked)) < 1e-9
