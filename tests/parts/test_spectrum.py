"""Amplitudes exchanged and phases kept, against the full Fourier transform of torch."""

from __future__ import annotations

import pytest
import torch

from fedshift.parts.spectrum import amplitude, with_amplitude, with_mean

SIZES = [(7, 8), (6, 6), (5, 3), (1, 4), (2, 1)]


def images(rows: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 2, *size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("size", SIZES)
def test_own_amplitudes_give_the_image_back(size):
    x = images(3, size)
    assert torch.allclose(with_amplitude(x, amplitude(x)), x, rtol=0, atol=2e-13)
    assert torch.allclose(with_mean(x, amplitude(x)), x, rtol=0, atol=2e-13)


@pytest.mark.parametrize("size", SIZES)
def test_amplitudes_of_others_with_the_own_phase(size):
    """The whole transform: x' = real(F^-1(A exp(i P))), A the mean of others' amplitudes."""
    x, others = images(3, size) - 0.5, images(6, size, seed=1)
    whole = torch.fft.fft2(others).abs().mean(0) * torch.exp(1j * torch.fft.fft2(x).angle())
    expected = torch.fft.ifft2(whole).real
    found = with_amplitude(x, amplitude(others).mean(0))
    assert torch.allclose(found, expected, rtol=0, atol=2e-13)
    assert torch.allclose(amplitude(found), amplitude(others).mean(0).expand(3, -1, -1, -1))


def test_the_mean_alone():
    x, others = images(3, (6, 7)), 3.0 * images(5, (6, 7), seed=1)
    y = with_mean(x, amplitude(others).mean(0))
    assert torch.allclose(y.mean((2, 3)), others.mean((0, 2, 3)).expand(3, 2), rtol=0, atol=2e-13)

    def centred(t):
        return t - t.mean((2, 3), keepdim=True)

    assert torch.allclose(centred(y), centred(x), rtol=0, atol=2e-13)
    dark = with_mean(-x, amplitude(others).mean(0))
    assert torch.allclose(dark, -y, rtol=0, atol=2e-13), "the sign is phase, and stays"


def test_what_has_no_phase_counts_as_0():
    wanted = amplitude(images(1, (4, 4)))[0]
    x = torch.zeros(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    y = with_amplitude(x, wanted)
    assert torch.allclose(y, torch.fft.irfft2(wanted + 0j, s=(4, 4)).expand(2, -1, -1, -1))
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_gradients():
    x = (images(2, (4, 5)) - 0.3).requires_grad_()
    wanted = amplitude(images(1, (4, 5), seed=2))[0]
    assert torch.autograd.gradcheck(lambda x: with_amplitude(x, wanted), x)
    assert torch.autograd.gradcheck(lambda x: with_mean(x, wanted), x)


def test_half_precision_is_computed_in_single_and_given_back():
    x = images(2, (4, 4)).bfloat16()
    assert amplitude(x).dtype == torch.float32
    assert with_amplitude(x, amplitude(x)).dtype == torch.bfloat16
    assert with_mean(x, amplitude(x)).dtype == torch.bfloat16
