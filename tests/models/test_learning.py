"""Networks in runs: they learn, clients stacked on them get what they get alone, FedFA fits them.

Deep networks are tried at a fraction of their width or depth, with all of their parts.
"""

import math

import pytest
import torch

import fedshift as fs
from fedshift.models import ModelSpec
from fedshift.run import Run
from tests.toys import federation, largest_difference

# network, options, the smallest shape that exercises its parts, layers of FedFA behind its stages
SMALL = [
    ("alexnet-bn", {"width": 16}, (3, 63, 63), 5),
    ("alexnet-gn", {"width": 32}, (3, 63, 63), 5),
    ("alexnet", {"width": 16}, (1, 63, 63), 5),
    ("digits-cnn", {}, (1, 16, 16), 3),
    ("vgg11", {}, (1, 32, 32), 8),
    ("fedbr-cnn", {}, (1, 9, 8), 4),
    ("fedgenp-cnn", {}, (1, 9, 9), 2),
    ("fedgenp-cnn-celeba", {}, (3, 53, 53), 3),
    ("cct-7/3x1", {}, (3, 6, 9), 8),
    ("resnet18", {"width": 8}, (3, 32, 32), 5),
    ("resnet18-gn", {"width": 8, "groups": 2}, (3, 32, 32), 5),
    ("resnet18-small", {"width": 4}, (1, 9, 8), 5),
    ("resnet18-small-gn", {"width": 4, "groups": 2}, (1, 9, 8), 5),
    ("resnet50", {"width": 4}, (1, 32, 32), 5),
    ("resnet50-512", {"width": 4}, (1, 32, 32), 5),
    ("resnet50-gn", {"width": 4, "groups": 2}, (1, 32, 32), 5),
    ("densenet100", {"depth": 16}, (1, 8, 8), 5),
    ("densenet100-plain", {"depth": 13}, (1, 8, 8), 5),
    ("swin-t", {"width": 32, "depths": (2, 1)}, (1, 37, 41), 2),
]


def play(name, options, shape, method, engine) -> Run:
    return Run(
        federation((4, 5), shape),
        method,
        fs.Protocol(rounds=1, steps=2, batch=4, lr=0.05),
        ModelSpec(name, kwargs=options),
        dtype="float64",
        engine=engine,
        workers=1,
        device="cpu",
    ).play()


@pytest.mark.parametrize(("name", "options", "shape", "layers"), SMALL, ids=lambda v: str(v))
def test_stacked_clients_get_what_they_get_alone(name, options, shape, layers):
    loop = play(name, options, shape, "fedavg", "loop")
    stacked = play(name, options, shape, "fedavg", "stacked")
    assert stacked.engine_name == "stacked"
    after = loop.progress.server.model
    assert largest_difference(after, stacked.progress.server.model) < 1e-9
    assert all(math.isfinite(line["loss"]["task"]) for line in loop.lines if line.get("client"))


@pytest.mark.parametrize(("name", "options", "shape", "layers"), SMALL, ids=lambda v: str(v))
def test_fedfa_finds_the_stages(name, options, shape, layers):
    run = Run(federation((4, 5), shape), "fedfa", model=ModelSpec(name, kwargs=options), seed=0)
    found = [n for n in dict(run.plan.model.named_children()) if n.startswith("fedfa_")]
    assert len(found) == layers
