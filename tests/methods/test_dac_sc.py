"""DAC-SC: the layers are what their spectra say, term by term, and act in evaluation too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedshift.errors import BadModel
from fedshift.methods.dac_sc import DACSC, EPS, CCNorm, SCNorm
from fedshift.methods.fedbn import FedBN
from fedshift.models import Staged
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import ToyNet


def maps(rows: int = 5, size: tuple[int, int] = (7, 8)) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(rows, 4, *size, dtype=torch.float64) + 0.3


def polar(amplitude: torch.Tensor, phase: torch.Tensor, size) -> torch.Tensor:
    return torch.fft.irfft2(amplitude * torch.exp(1j * phase), s=size)


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft2(x)


def batch_norm(content: float = 0.5) -> tuple[nn.BatchNorm2d, CCNorm]:
    """A batch norm with tensors of its own, and the layer that takes its place."""
    norm = nn.BatchNorm2d(4).double()
    for n, t in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        t.data = 0.5 + torch.linspace(0.1, 1.0, 4, dtype=torch.float64).roll(n)
    return norm, CCNorm(norm, content)


@pytest.mark.parametrize("size", [(7, 8), (6, 6), (5, 3)])
def test_scnorm_is_the_map_with_mixed_amplitudes(size):
    """At the start a1 = a2 = 1/2: phase unchanged, the amplitude the mean of the two."""
    x, layer = maps(size=size), SCNorm(4).double()
    y = layer(x)
    whitened = nn.functional.instance_norm(x, eps=EPS)
    mean = (spectrum(whitened).abs() + spectrum(x).abs()) / 2
    assert torch.allclose(spectrum(y).abs(), mean, rtol=0, atol=5e-14)
    turned = spectrum(y) / spectrum(x)
    assert torch.allclose(turned.angle(), torch.zeros_like(mean), atol=1e-13)
    # and away from the start, with weight and bias
    layer.mixture.data = torch.tensor([0.05, -0.1], dtype=torch.float64)
    layer.weight.data, layer.bias.data = torch.rand(4).double(), torch.rand(4).double()
    a1 = 1 / (1 + torch.exp(torch.tensor(-1.5, dtype=torch.float64)))
    amplitude = a1 * spectrum(whitened).abs() + (1 - a1) * spectrum(x).abs()
    literal = polar(amplitude, spectrum(x).angle(), size)
    expected = layer.weight[:, None, None] * literal + layer.bias[:, None, None]
    assert torch.allclose(layer(x), expected, atol=1e-13)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("content", [0.0, 0.3, 1.0])
def test_ccnorm_is_the_map_with_the_amplitude_of_batch_norm(content, training):
    x, (norm, layer) = maps(), batch_norm(content)
    norm.train(training), layer.train(training)
    mu = x.mean((0, 2, 3)) if training else norm.running_mean
    var = x.var((0, 2, 3), correction=0) if training else norm.running_var
    mu, var = mu[:, None, None].clone(), var[:, None, None].clone()
    amplitude = spectrum((x - mu) / (var + norm.eps).sqrt()).abs()
    literal = polar(amplitude, spectrum(x - content * mu).angle(), x.shape[2:])
    expected = norm.weight[:, None, None] * literal + norm.bias[:, None, None]
    found = layer(x)
    assert torch.allclose(found, expected, atol=1e-12)
    ordinary = norm(x)
    assert torch.allclose(found, ordinary, atol=1e-12) == (content == 1.0)
    for name, tensor in norm.state_dict().items():
        assert torch.allclose(layer.state_dict()[name], tensor), f"{name} moves as there"


def test_one_image_keeps_no_mean():
    """Batch norm of one image takes its own mean away: amplitude 0 whatever the phase."""
    _, layer = batch_norm(0.0)
    layer.weight.data.fill_(1.0), layer.bias.data.zero_()
    assert layer(maps(1)).mean((2, 3)).abs().max() < 1e-14
    assert layer(maps(5)).mean((2, 3)).abs().max() > 1e-3


def test_no_gradient_would_reach_the_share_of_content():
    """In the literal form, with b a tensor: the angle of a real number has none."""
    x = maps()
    b = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    mu = x.mean((0, 2, 3), keepdim=True)
    out = polar(spectrum(x - mu).abs(), spectrum(x - b * mu).angle(), x.shape[2:])
    (slope,) = torch.autograd.grad(out.square().sum() + out[0].sum(), b)
    assert slope.abs() < 1e-12


def test_dead_channels_stay_finite():
    x = torch.zeros(3, 4, 5, 5, requires_grad=True)
    y = SCNorm(4)(CCNorm(nn.BatchNorm2d(4), 0.5)(x))
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()


class Two(Staged):
    """Two stages of maps, of which the first keeps its resolution."""

    stages = ("wide", "small", "flat")

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(4)] if norm else []
        self.wide = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *norms[:1])
        self.small = nn.Sequential(*norms, nn.MaxPool2d(2))
        self.flat = nn.Flatten()
        self.head = nn.Linear(36, 3)


FACTS = SimpleNamespace(
    shape=(1, 6, 6), stage_shapes={"wide": (4, 6, 6), "small": (4, 3, 3), "flat": (36,)}
)


def replaced(**settings) -> list[str]:
    model = DACSC(**settings).build(Two(), FACTS)
    return [n for n, m in model.named_modules() if isinstance(m, CCNorm)]


def test_places():
    model = DACSC().build(Two(), FACTS)
    assert [n for n, m in model.named_modules() if isinstance(m, SCNorm)] == [
        "dac_sc_wide",
        "dac_sc_small",
    ]
    assert replaced() == ["small.1"], "the last batch norm where the resolution falls"
    assert replaced(replace="maps") == ["wide.1", "small.1"]
    assert replaced(replace="wide") == ["wide.1"]
    assert replaced(replace="none") == []
    bare = DACSC().build(Two(norm=False), FACTS)
    assert not [m for m in bare.modules() if isinstance(m, CCNorm)]
    with pytest.raises(BadModel, match="names stage 'flat', which has no batch norm over maps"):
        replaced(replace="flat")
    with pytest.raises(BadModel, match=r"dac-sc\.layers names stage 'hidden'"):
        start(DACSC(layers="hidden"))
    plain = CCNorm(nn.BatchNorm2d(4, affine=False, track_running_stats=False), 0.5)
    assert not plain.state_dict() and plain(maps()).shape == (5, 4, 7, 8)
    with pytest.raises(BadModel, match="without momentum"):
        CCNorm(nn.BatchNorm2d(2, momentum=None), 0.5)


def test_what_was_learnt_before_stays():
    norm, layer = batch_norm()
    for name, tensor in norm.state_dict().items():
        assert torch.equal(layer.state_dict()[name], tensor)
    assert list(ToyNet().state_dict()) == [
        n for n in start(DACSC()).plan.model.state_dict() if not n.startswith("dac_sc")
    ]


def test_beside_fedbn_the_replaced_norm_is_a_clients_own():
    run = start(FedBN() + DACSC(), PROTOCOL).play()
    kept = {n for n, s in run.plan.scopes.items() if s.share == "kept"}
    assert kept == {f"conv.1.{n}" for n in nn.BatchNorm2d(1).state_dict()}
    assert "dac_sc_conv.weight" in run.progress.server.model
    assert run.progress.server.model["dac_sc_conv.mixture"].any(), "and this one is learnt"
