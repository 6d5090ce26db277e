"""Foreign modules: the head is found, the sum of the parts is the whole, transforms work."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from fedshift.errors import BadModel
from fedshift.models import adapt, check


class Torchy(nn.Module):
    """Like a torchvision network: functional pieces between modules, a dotted head."""

    def __init__(self, log_softmax=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.ModuleDict({"dropout": nn.Dropout(0.5), "fc": nn.Linear(4, 5)})
        self.log_softmax = log_softmax

    def forward(self, x):
        x = self.layer1(self.conv1(x)).mean((2, 3))
        x = self.head["fc"](self.head["dropout"](x))
        return x.log_softmax(1) if self.log_softmax else x


def adapted(**kwargs):
    return adapt(Torchy(**kwargs), stages=("conv1", "layer1.1"), head="head.fc")


def test_parts_make_the_whole_and_the_module_is_left_alone():
    net = Torchy()
    names = [n for n, _ in net.named_parameters()]
    model = adapt(net, stages=("conv1", "layer1.1"), head="head.fc", shape=(3, 8, 8), classes=5)
    x = torch.randn(2, 3, 8, 8)
    z = model.eval().features(x)
    assert z.shape == (2, 4)
    assert torch.equal(model.head(z), net.eval()(x))
    assert torch.equal(model.original()(x), net(x))
    assert [n for n, _ in net.named_parameters()] == names
    assert model.stages == ("body.conv1", "body.layer1.1")
    assert isinstance(model.get_submodule(model.stages[1]), nn.ReLU)


def test_under_functional_call_vmap_and_deepcopy():
    nets = [copy.deepcopy(adapted()).double().eval() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x = torch.randn(3, 2, 3, 8, 8, dtype=torch.float64)
    out = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)))(params, buffers, x)
    alone = torch.stack([net(x[k]) for k, net in enumerate(nets)])
    torch.testing.assert_close(out, alone, rtol=0, atol=1e-12)


def test_what_follows_the_head_is_refused():
    with pytest.raises(BadModel, match=r"'Torchy': head 'head.fc'.*nothing may follow the head"):
        adapt(Torchy(log_softmax=True), head="head.fc", shape=(3, 8, 8), classes=5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"stages": ("conv",), "head": "head.fc"}, "no stage 'conv': did you mean conv1"),
        ({"head": "fc"}, "no head 'fc'"),
        ({"stages": ("conv1",)}, 'is it head="head.fc"'),
        ({"stages": ("head",), "head": "head.fc"}, "stage 'head' overlaps"),
        ({"stages": "conv1", "head": "head.fc"}, "give a tuple"),
    ],
)
def test_wrong_paths_name_the_nearest(kwargs, message):
    with pytest.raises(BadModel, match=message):
        adapt(Torchy(), **kwargs)


def test_a_wrong_width_names_the_classes():
    with pytest.raises(BadModel, match="10 classes: build the model with 10 outputs"):
        adapt(Torchy(), head="head.fc", shape=(3, 8, 8), classes=10)
    assert check(adapted(), (3, 8, 8), 5) == 4
