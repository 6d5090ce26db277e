"""What numbers a run computes with: asked for by name, undone at its end, told by its report."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift.plan import precision

PROTOCOL = fs.Protocol(rounds=1, steps=1, batch=8)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", False), ("tf32", True)])
def test_tf32_is_allowed_where_it_was_asked_for_alone(dtype, allowed):
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with precision(dtype):
        assert matmul.allow_tf32 is allowed
        assert torch.backends.cudnn.allow_tf32 is allowed
    assert matmul.allow_tf32 == before


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bf16"])
def test_a_report_says_what_is_coarser_than_float32(dtype):
    run = fs.Run(fs.data.load("shifted-digits"), "fedavg", PROTOCOL, "mlp", dtype=dtype).play()
    assert all(t.dtype == torch.float32 for t in run.progress.server.model.values())
    page = run.report().html()
    assert f"<dt>numbers</dt><dd>{dtype}</dd>" in page
    assert ("coarser than float32" in page) == (dtype != "float32")
