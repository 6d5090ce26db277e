"""Every network: published sizes, the contract at several shapes, keyed weights, listing."""

import subprocess
import sys

import pytest
import torch

from fedshift import models
from fedshift.errors import BadModel, UnknownName
from fedshift.models.registry import construct
from fedshift.net import measure

SIZES = [  # network, options, shape, classes, parameters
    ("fedavg-cnn", {}, (1, 28, 28), 10, 582_026),  # 832 + 51,264 + 524,800 + 5,130: no padding
    ("digits-cnn", {}, (3, 32, 32), 10, 18_151_370),  # FRAug, table of networks: "18.15 M"
    ("mlp", {}, (1, 28, 28), 10, 199_210),  # McMahan et al. (2017), section 3: the 2NN
    ("lenet", {}, (1, 32, 32), 10, 61_706),  # LeNet-5 with full connections
    ("small-cnn", {}, (1, 16, 16), 10, 24_058),
    ("alexnet-bn", {}, (3, 256, 256), 10, 12_974_154),  # FedFA: 49.5 MB of 4 bytes each
    ("alexnet-bn", {"width": 4096}, (3, 256, 256), 10, 57_063_498),  # FedBN's
    ("alexnet-gn", {}, (3, 256, 256), 10, 12_974_154),
    ("alexnet", {}, (3, 224, 224), 1000, 61_100_840),  # torchvision's
    ("vgg11", {}, (3, 32, 32), 10, 9_220_480 + 5_130),  # FedBR: "9.2 M"
    ("fedbr-cnn", {}, (1, 28, 28), 10, 370_560 + 1_290),
    ("cct-7/3x1", {}, (3, 32, 32), 100, 3_757_569 + 25_700),
    ("fedgenp-cnn", {}, (1, 28, 28), 10, 26_434),
    ("fedgenp-cnn", {}, (1, 28, 28), 26, 26_962),
    ("fedgenp-cnn-celeba", {}, (3, 84, 84), 2, 25_954),
    ("resnet18", {}, (3, 224, 224), 7, 11_176_512 + 513 * 7),  # FRAug: "11.18 M"
    ("resnet18", {}, (3, 224, 224), 1000, 11_689_512),  # torchvision's
    ("resnet18-gn", {}, (3, 32, 32), 1000, 11_689_512),
    ("resnet18-small", {}, (3, 32, 32), 10, 11_173_962),
    ("resnet50", {}, (3, 224, 224), 1000, 25_557_032),  # torchvision's
    ("resnet50-gn", {}, (3, 224, 224), 1000, 25_557_032),
    ("resnet50-512", {}, (3, 256, 256), 65, 24_557_120 + 33_345),  # FedLSI: "24.6 M" and "33.3 K"
    ("densenet100", {}, (3, 32, 32), 10, 769_162),  # DenseNet-BC, Huang et al.: "0.8M"
    ("densenet100-plain", {}, (3, 32, 32), 10, 6_979_642),  # Huang et al.: "7.0M"
    ("swin-t", {}, (3, 224, 224), 1000, 28_288_354),  # torchvision's
]


@pytest.mark.parametrize(("name", "options", "shape", "classes", "count"), SIZES)
def test_number_of_parameters(name, options, shape, classes, count):
    with torch.device("meta"):
        net = construct(name, shape, classes, options)
    assert sum(p.numel() for p in net.parameters()) == count


OWN_SHAPES = {  # small images with odd sides, for networks that need more than 16 pixels
    "alexnet": (1, 63, 70),
    "vgg11": (1, 32, 45),
    "fedgenp-cnn-celeba": (1, 53, 60),
    "swin-t": (1, 33, 46),
    "resnet": (1, 32, 45),
}


def shape_of(name: str) -> tuple[int, ...]:
    """The smallest image that is worth trying."""
    return next((s for n, s in OWN_SHAPES.items() if name.startswith(n)), (3, 17, 21))


@pytest.mark.parametrize("name", models.names())
def test_contract_at_odd_shapes(name):
    shape = shape_of(name)
    net = construct(name, shape, 7)
    width = models.check(net, shape, 7)
    assert net.head.in_features == width
    assert len(net.stages) >= 2


def test_every_network_has_its_size_tested():
    assert {"resnet18-small-gn", "alexnet-ln"} == set(models.names()) - {row[0] for row in SIZES}


STAGES = [  # network, shape, shape of one sample behind each stage, worked out by hand
    (
        "alexnet-bn",
        (3, 256, 256),  # 256 -> 63 -> 31; 31 -> 15; 15 -> 7; 6 after averages
        {
            "conv1": (64, 31, 31),
            "conv2": (192, 15, 15),
            "conv3": (384, 15, 15),
            "conv4": (256, 15, 15),
            "conv5": (256, 7, 7),
            "fc1": (1024,),
            "fc2": (1024,),
        },
    ),
    (
        "digits-cnn",
        (3, 32, 32),
        {
            "conv1": (64, 16, 16),
            "conv2": (64, 8, 8),
            "conv3": (128, 8, 8),  # 8192 values
            "fc1": (2048,),
            "fc2": (512,),
        },
    ),
    (
        "fedbr-cnn",
        (1, 28, 28),
        {
            "conv1": (64, 28, 28),
            "conv2": (128, 14, 14),
            "conv3": (128, 14, 14),
            "conv4": (128, 14, 14),
        },
    ),
    (
        "vgg11",
        (3, 32, 32),
        {
            "conv1": (64, 16, 16),
            "conv2": (128, 8, 8),
            "conv3": (256, 8, 8),
            "conv4": (256, 4, 4),
            "conv5": (512, 4, 4),
            "conv6": (512, 2, 2),
            "conv7": (512, 2, 2),
            "conv8": (512, 1, 1),
        },
    ),
    (
        "cct-7/3x1",
        (3, 32, 32),
        {"tokens": (256, 256), **{f"block{i}": (256, 256) for i in range(1, 8)}},
    ),
    (
        "fedgenp-cnn",
        (1, 28, 28),
        {"conv1": (6, 14, 14), "conv2": (16, 7, 7), "fc": (32,)},  # 784 values
    ),
    (
        "fedgenp-cnn-celeba",
        (3, 84, 84),  # 84 -> 42 -> 21 -> 11 -> 5 -> 3 -> 1
        {"conv1": (16, 21, 21), "conv2": (32, 5, 5), "conv3": (64, 1, 1), "fc": (32,)},
    ),
    (
        "resnet18-gn",
        (3, 32, 32),
        {
            "stem": (64, 8, 8),
            "layer1": (64, 8, 8),
            "layer2": (128, 4, 4),
            "layer3": (256, 2, 2),
            "layer4": (512, 1, 1),
        },
    ),
    (
        "resnet18-small",
        (3, 32, 32),
        {
            "stem": (64, 32, 32),
            "layer1": (64, 32, 32),
            "layer2": (128, 16, 16),
            "layer3": (256, 8, 8),
            "layer4": (512, 4, 4),
        },
    ),
    (
        "resnet50",
        (3, 224, 224),
        {
            "stem": (64, 56, 56),
            "layer1": (256, 56, 56),
            "layer2": (512, 28, 28),
            "layer3": (1024, 14, 14),
            "layer4": (2048, 7, 7),
        },
    ),
    (
        "densenet100",
        (3, 32, 32),  # each block adds 16 * 12 maps, a transition halves them
        {
            "stem": (24, 32, 32),
            "block1": (108, 16, 16),
            "block2": (150, 8, 8),
            "block3": (342, 8, 8),
            "last": (342, 8, 8),
        },
    ),
    (
        "swin-t",
        (3, 224, 224),
        {
            "stage1": (96, 56, 56),
            "stage2": (192, 28, 28),
            "stage3": (384, 14, 14),
            "stage4": (768, 7, 7),
        },
    ),
]


@pytest.mark.parametrize(("name", "shape", "stages"), STAGES, ids=lambda v: str(v)[:12])
def test_stages_and_their_shapes(name, shape, stages):
    with torch.device("meta"):
        net = construct(name, shape, 7)
        width, found = measure(net, shape)
    assert list(found.items()) == list(stages.items())
    assert width == net.head.in_features


def test_a_bottleneck_halves_the_side_in_its_3x3_convolution():
    with torch.device("meta"):
        first = construct("resnet50", (3, 64, 64), 7).layer2[0].body
    assert [first.get_submodule(f"conv{i}").stride for i in (1, 2, 3)] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("name", ["mlp", "lenet", "small-cnn", "cct-7/3x1", "resnet18-small-gn"])
def test_key_alone_decides_the_weights(name):
    kwargs = {"width": 8, "groups": 4} if name.startswith("resnet") else {}
    torch.manual_seed(0)
    a = models.build(name, (1, 16, 16), 4, key=1, kwargs=kwargs)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.rand(1), after, rtol=0, atol=0)  # the generator is untouched
    b = models.build(name, (1, 16, 16), 4, key=1, kwargs=kwargs)
    c = models.build(name, (1, 16, 16), 4, key=2, kwargs=kwargs)
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
    with pytest.raises(BadModel, match="at least 32x32"):
        construct("resnet18", (3, 28, 28), 3)
    with pytest.raises(UnknownName, match="unknown network 'lenett': did you mean lenet"):
        models.build("lenett", (1, 28, 28), 10, key=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", {"depth": 3}, "'lenet' takes no further arguments, but depth was given"),
        ("resnet18", {"depth": 50}, "'resnet18' has depth 18 by its name"),
        ("resnet18", {"grups": 2}, "unknown argument of network 'resnet18' 'grups': did you mean"),
        ("resnet18", {"norm": "grp"}, "norm 'grp'"),
        ("resnet18-gn", {"groups": 5}, "64 channels do not fall into 5 groups"),
        ("alexnet-gn", {"norm": "batch"}, "'alexnet-gn' has norm 'group' by its name"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises((BadModel, UnknownName), match=message) as caught:
        models.build(name, (3, 64, 64), 10, key=0, kwargs=options)
    assert "\n" not in str(caught.value)
