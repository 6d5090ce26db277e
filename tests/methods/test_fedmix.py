"""FedMix: its first-order loss against the exact mixture, and the pool on its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedshift import methods
from fedshift.errors import CannotCombine
from fedshift.method import Method, Stage
from fedshift.methods.fedmix import FORMS, FedMix, logits_and_slope, mixture
from fedshift.models import Staged
from fedshift.net import Net
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference


class Itself(Staged):
    """A network whose logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Identity()


X = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
Y = torch.eye(2, dtype=torch.float64)
MEAN_X = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
MEAN_Y = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)


def of_toy(lam: float, form: str) -> float:
    return mixture(Net(Itself()), X, Y, MEAN_X, MEAN_Y, lam, form).item()


def test_against_the_exact_mixture():
    """Logits are the inputs, two samples. The error falls four times as lambda halves.

    The exact loss is CE((1 - l) x + l xm, (1 - l) y + l ym): 0.268130 at l = 0.2, the
    approximation 0.238697. FedBR's form has a first-order error, which only halves.
    """
    assert of_toy(0.2, "naive") == pytest.approx(0.268130, abs=1e-6)
    assert of_toy(0.2, "taylor") == pytest.approx(0.238697, abs=1e-6)
    errors = {
        form: [abs(of_toy(lam, form) - of_toy(lam, "naive")) for lam in (0.2, 0.1, 0.05, 0.025)]
        for form in FORMS
    }
    assert errors["taylor"] == pytest.approx([0.029433, 0.007293, 0.001815, 0.000453], abs=1e-6)
    assert errors["fedbr"] == pytest.approx([0.017849, 0.012506, 0.007213, 0.003854], abs=1e-6)


def toy() -> ToyNet:
    torch.manual_seed(0)
    return ToyNet(dropout=0.0).double()


def batch() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    x, mean_x = torch.randn(2, 5, 1, 6, 6, dtype=torch.float64)
    y, mean_y = torch.rand(2, 5, CLASSES, dtype=torch.float64).softmax(2)
    return x, y, mean_x, mean_y


@pytest.mark.parametrize("form", ["taylor", "fedbr"])
def test_loss_and_second_derivative_by_plain_autograd(form):
    """With batch norm in the way, whose statistics move once and as in any pass."""
    x, y, mean_x, mean_y = batch()
    ours, theirs = toy(), toy()
    found = mixture(Net(ours), x, y, mean_x, mean_y, 0.3, form)
    grads = torch.autograd.grad(found, list(ours.parameters()))
    inner = (0.7 * x).requires_grad_()
    logits = theirs(inner)
    own = F.cross_entropy(logits, y)
    (slope,) = torch.autograd.grad(own, inner, create_graph=True)
    step = (slope * mean_x).sum() * (0.7 / 5 if form == "fedbr" else 1.0)
    expected = 0.7 * own + 0.3 * F.cross_entropy(logits, mean_y) + 0.3 * step
    assert found.item() == pytest.approx(expected.item(), abs=1e-13)
    others = torch.autograd.grad(expected, list(theirs.parameters()))
    for a, b in zip(grads, others, strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    for name, buffer in theirs.named_buffers():
        assert torch.allclose(ours.get_buffer(name), buffer)
    assert ours.conv[1].num_batches_tracked == 1


def test_logits_of_the_pass_are_those_of_any_other():
    x, y, *_ = batch()
    logits, _ = logits_and_slope(Net(toy()), x, lambda logits: F.cross_entropy(logits, y))
    assert torch.allclose(logits, toy()(x))


# -- the pool ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(FedMix):
    """FedMix, and what crosses."""

    up: ClassVar[list] = []
    down: ClassVar[list] = []

    def broadcast(self, server, client, round):
        self.down.append(sorted(server.tensors))
        return super().broadcast(server, client, round)

    def after(self, new, uploads, server, net, key):
        self.up.append((uploads.stage, dict(uploads.extras)))
        return super().after(new, uploads, server, net, key)


def watched(size: int = 7, mean_of: int = 3):
    Watched.up.clear(), Watched.down.clear()
    return start(Watched(size=size, mean_of=mean_of), PROTOCOL.replace(rounds=2)).play()


def test_the_pool_is_sent_once_and_kept_by_everybody():
    run = watched()
    stages = [stage for stage, _ in Watched.up]
    assert stages == ["fedmix-collect", "fedmix-send", "train", "train"]
    sent = [bool(extras) for _, extras in Watched.up]
    assert sent == [True, False, False, False]
    assert Watched.down == [[]] * 3 + [["pool/x", "pool/y"]] * 3 + [[]] * 6
    kept = [run.progress.kept[c] for c in "abc"]
    for part, shape in (("x", (7, 1, 6, 6)), ("y", (7, CLASSES))):
        pools = [k[f"fedmix/pool/{part}"] for k in kept]
        assert pools[0].shape == shape
        assert all(torch.equal(pools[0], p) for p in pools)


def test_pairs_stay_together_and_every_client_gives():
    run = watched()
    means = Watched.up[0][1]
    assert means["means/x"].shape == (3, 3, 1, 6, 6), "seven of three clients: three each"
    rows_x, rows_y = means["means/x"].flatten(0, 1), means["means/y"].flatten(0, 1)
    kept = run.progress.kept["a"]
    places = []
    for x, y in zip(kept["fedmix/pool/x"], kept["fedmix/pool/y"], strict=True):
        (at,) = torch.nonzero((rows_x == x).flatten(1).all(1)).flatten().tolist()
        assert torch.equal(rows_y[at], y)
        places.append(at)
    assert len(set(places)) == 7 and {at // 3 for at in places} == {0, 1, 2}


def test_labels_are_the_means_of_those_of_the_samples():
    """Means of one sample are samples, each with its own label."""
    watched(mean_of=1)
    means, fed = Watched.up[0][1], federation()
    for k, client in enumerate("abc"):
        x, y = fed[client].train.x, fed[client].train.y
        for mean, label in zip(means["means/x"][k], means["means/y"][k], strict=True):
            (at,) = torch.nonzero((x - mean).abs().flatten(1).amax(1) < 1e-12).flatten().tolist()
            assert label.argmax() == y[at] and label.sum() == 1


def test_each_form_is_another_run():
    short = PROTOCOL.replace(steps=2)
    models = [
        start(FedMix(form=form, size=6), short).play().progress.server.model for form in FORMS
    ]
    assert largest_difference(models[0], models[1]) > 1e-6
    assert largest_difference(models[1], models[2]) > 1e-6


@pytest.mark.parametrize("other", ["fedbr", "fedsam"])
def test_beside_others_on_both_engines(other):
    settings = {"fedbr.size": 6} if other == "fedbr" else {}
    whole = methods.make(other, settings) + FedMix(size=6)
    runs = [start(whole, PROTOCOL.replace(steps=2), engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9


@dataclass(frozen=True)
class First(Method):
    """Trains before anything else."""

    name: ClassVar[str] = "first"

    def stages(self, protocol):
        return (Stage("warm", 1), Stage("train", protocol.rounds))


def test_what_cannot_be_is_refused():
    with pytest.raises(CannotCombine, match="fedmix has no pool yet in the stage 'warm'"):
        start(First() + FedMix(size=6)).play()
    start(FedMix(size=6) + First()).play()
