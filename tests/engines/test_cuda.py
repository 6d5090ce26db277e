"""The GPU's engines against the CPU's, where there is a GPU."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift.run import Run
from tests.methods.test_battery import COMPOSITIONS, PROTOCOL, make, state
from tests.methods.test_segmentation import MOVING
from tests.methods.test_segmentation import PROTOCOL as GENTLE
from tests.test_trip import Collector, MinMax, Noisy, Sam
from tests.toys import ToyNet, federation, largest_difference, patches, toy_unet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

NAMES = [*fs.methods.names(), *COMPOSITIONS]
OWN = [Collector(), MinMax(), Noisy(), Sam()]


def play(method, engine: str, device: str, protocol=PROTOCOL, **options) -> Run:
    return Run(
        federation(),
        make(method) if isinstance(method, str) else method,
        protocol,
        ToyNet,
        dtype="float64",
        engine=engine,
        device=device,
        warn=lambda message: None,
        **options,
    ).play()


def on_cpu(tensors: dict) -> dict:
    return {n: t.cpu() for n, t in tensors.items()}


@pytest.mark.parametrize(
    "method", [*NAMES, *OWN], ids=lambda m: m if isinstance(m, str) else m.name
)
def test_graphs_equal_the_loop_on_the_cpu(method):
    cpu = play(method, "loop", "cpu")
    graphs = play(method, "stacked", "cuda")
    assert graphs.engine_name == "stacked"
    assert largest_difference(state(cpu), on_cpu(state(graphs))) < 1e-9


def test_changing_cohorts_rates_and_chunks():
    protocol = PROTOCOL.replace(
        rounds=5,
        participation=2,
        schedule="cosine",
        optimizer="adam",
        lr=0.01,
        reset_optimizer=False,
        clip=1.0,
    )
    plain = protocol.replace(optimizer="sgd", momentum=0.9)
    for method, how in (("fedbn", protocol), ("fedbn+scaffold", plain)):
        cpu = play(method, "loop", "cpu", how)
        for chunk in (0, 1):
            graphs = play(method, "stacked", "cuda", how, chunk=chunk)
            assert largest_difference(state(cpu), on_cpu(state(graphs))) < 1e-9


@pytest.mark.parametrize("name", ["fedbn", "fedfa"])
def test_labels_of_pixels_move_in_graphs_too(name):
    fed = patches(pipeline=MOVING)
    cpu, graphs = (
        Run(fed, make(name), GENTLE, toy_unet, dtype="float64", engine=e, device=d).play()
        for e, d in (("loop", "cpu"), ("stacked", "cuda"))
    )
    assert graphs.engine_name == "stacked"
    assert largest_difference(state(cpu), on_cpu(state(graphs))) < 1e-9


def test_auto_stacks_on_a_gpu():
    assert play("fedavg", "auto", "auto").engine_name == "stacked"
