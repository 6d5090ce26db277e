"""Every network: published sizes, the contract at several shapes, keyed weights, listing."""

import subprocess
import sys

import pytest
import torch

from fedshift import models
from fedshift.errors import BadModel, UnknownName
from fedshift.models.registry import construct

SIZES = [  # network, shape, classes, parameters
    ("fedavg-cnn", (1, 28, 28), 10, 582_026),  # 832 + 51,264 + 524,800 + 5,130: no padding
    ("digits-cnn", (3, 32, 32), 10, 18_151_370),  # FRAug, table of networks: "18.15 M"
    ("mlp", (1, 28, 28), 10, 199_210),  # McMahan et al. (2017), section 3: the 2NN
    ("lenet", (1, 32, 32), 10, 61_706),  # LeNet-5 with full connections
    ("small-cnn", (1, 16, 16), 10, 24_058),
    ("unet", (3, 384, 384), 2, 7_763_074),  # FedFA, U-Net: 29.6 MB
    ("unet-small", (1, 32, 32), 2, 121_042),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), SIZES)
def test_number_of_parameters(name, shape, classes, count):
    with torch.device("meta"):
        net = construct(name, shape, classes)
    assert sum(p.numel() for p in net.parameters()) == count


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 21)])
def test_contract_at_small_and_odd_shapes(name, shape):
    net = construct(name, shape, 7)
    if name.startswith("unet"):
        assert net.head.in_channels == models.check(net, shape, 7, task="segmentation")
    else:
        assert net.head.in_features == models.check(net, shape, 7)
    assert len(net.stages) >= 2


@pytest.mark.parametrize("name", ["mlp", "lenet", "small-cnn"])
def test_key_alone_decides_the_weights(name):
    torch.manual_seed(0)
    a = models.build(name, (1, 16, 16), 4, key=1)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.rand(1), after, rtol=0, atol=0)  # the generator is untouched
    b = models.build(name, (1, 16, 16), 4, key=1)
    c = models.build(name, (1, 16, 16), 4, key=2)
    for key, t in a.state_dict().items():
        assert torch.equal(t, b.state_dict()[key])
    assert not torch.equal(a.head.weight, c.head.weight)


def test_names_are_found_without_torch():
    code = (
        "import sys; from fedshift import models; assert 'lenet' in models.names(); "
        "assert all(models.names().values()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_too_small_and_unknown():
    with pytest.raises(BadModel, match=r"'lenet' needs images of at least 16x16.*\(1, 8, 8\)"):
        construct("lenet", (1, 8, 8), 3)
    with pytest.raises(UnknownName, match="unknown network 'lenett': did you mean lenet"):
        models.build("lenett", (1, 28, 28), 10, key=0)
