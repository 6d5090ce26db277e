"""Networks in runs: they learn, clients stacked on them get what they get alone, FedFA fits them.

Deep networks are tried at a fraction of their width or depth, with all of their parts.
"""

import pytest

import fedshift as fs
from fedshift.models import ModelSpec
from fedshift.run import Run
from tests.toys import federation, largest_difference

SMALL = [  # network, options, a small shape that its parts can take
    ("alexnet-bn", {"width": 16, "dropout": 0.5}, (3, 63, 63)),
    ("vgg11", {"width": 4}, (1, 32, 32)),
    ("fedbr-cnn", {}, (1, 9, 8)),
    ("fedgenp-cnn", {}, (1, 9, 9)),
    ("fedgenp-cnn-celeba", {}, (3, 53, 53)),
    ("cct-7/3x1", {}, (3, 8, 9)),
    ("resnet18", {"width": 8}, (3, 32, 32)),
    ("resnet18-gn", {"width": 8, "groups": 2}, (3, 32, 32)),
    ("resnet18-small", {"width": 4}, (1, 9, 8)),
    ("resnet18-small-gn", {"width": 4, "groups": 2}, (1, 9, 8)),
    ("resnet50-512", {"width": 4}, (1, 32, 32)),
    ("resnet50-gn", {"width": 4, "groups": 2}, (1, 32, 32)),
    ("densenet100", {"depth": 16}, (1, 8, 8)),
    ("densenet100-plain", {"depth": 13}, (1, 8, 8)),
    ("swin-t", {"width": 32, "depths": (2, 1)}, (1, 37, 41)),
]


def start(name, options, shape, method="fedavg", **more) -> Run:
    protocol = fs.Protocol(rounds=1, steps=1 if name == "alexnet-bn" else 2, batch=4, lr=0.05)
    model = ModelSpec(name, kwargs=options)
    return Run(
        federation((4, 5), shape), method, protocol, model, dtype="float64", device="cpu", **more
    )


@pytest.mark.parametrize(("name", "options", "shape"), SMALL, ids=lambda v: str(v))
def test_stacked_clients_get_what_they_get_alone(name, options, shape):
    loop = start(name, options, shape, engine="loop", workers=1)
    before = {n: t.clone() for n, t in loop.progress.server.model.items()}
    stacked = start(name, options, shape, engine="stacked")
    assert stacked.engine_name == "stacked"
    after = loop.play().progress.server.model
    assert largest_difference(after, stacked.play().progress.server.model) < 1e-9
    still = [n for n in loop.plan.shared if (before[n] == after[n]).all()]
    # a step reaches every parameter, but for a bias whose norm takes it away at once
    assert not [n for n in still if not n.endswith("bias")]


@pytest.mark.parametrize(
    ("name", "options", "shape", "stages"),
    [
        ("alexnet-bn", {}, (3, 95, 95), "conv1 conv2 conv3 conv4 conv5"),
        ("resnet50", {"width": 4}, (3, 64, 64), "stem layer1 layer2 layer3 layer4"),
        ("densenet100", {}, (3, 8, 8), "stem block1 block2 block3 last"),
        ("swin-t", {}, (3, 64, 64), "stage1 stage2 stage3 stage4"),
        ("cct-7/3x1", {}, (3, 8, 8), "tokens " + " ".join(f"block{i}" for i in range(1, 8))),
        ("digits-cnn", {}, (3, 16, 16), "conv1 conv2 conv3"),
        ("fedbr-cnn", {}, (1, 28, 28), "conv1 conv2 conv3 conv4"),
    ],
)
def test_fedfa_stands_behind_the_stages_of_its_sheet(name, options, shape, stages):
    run = start(name, options, shape, "fedfa", engine="loop", workers=1)
    found = [n for n in dict(run.plan.model.named_children()) if n.startswith("fedfa_")]
    assert found == [f"fedfa_{stage}" for stage in stages.split()]


def test_fedfa_on_a_transformer_of_windows_learns_on_both_engines():
    options = {"width": 32, "depths": (1, 1)}
    loop, stacked = (
        start("swin-t", options, (1, 37, 41), fs.methods.FedFA(p=1.0), engine=e).play()
        for e in ("loop", "stacked")
    )
    assert stacked.engine_name == "stacked"
    a, b = (run.progress.server.model for run in (loop, stacked))
    assert largest_difference(a, b) < 1e-9
