"""The contract: what a model must have, and that checking leaves the model as it was."""

import copy

import pytest
import torch
from torch import nn

from fedshift.errors import BadModel
from fedshift.models import Staged, check


class Net(Staged):
    def __init__(self, stages=("one",), width=3, classes=2):
        super().__init__()
        self.stages = stages
        self.one = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
        self.head = nn.Linear(width, classes)


def test_check_changes_nothing():
    net = Net(width=12).train()
    net.one[1].eval()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert check(net, (1, 4, 4), 2) == 12
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(t, net.state_dict()[n]) for n, t in before.items())
    assert net.training and not net.one[1].training


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Linear(2, 2), r"'Linear' has no features\(x\): name its stages and head"),
        (Net(stages=("ones",)), "has no stage 'ones': did you mean one"),
        (Net(stages="one"), "give a tuple"),
        (Net(stages=("one", "one")), "has stage 'one' twice: name it once"),
        (Net(width=5), r"head\(z\) fails on an input of shape \(2, 12\): RuntimeError"),
        (Net(width=12, classes=3), r"head gives shape \[2, 3\].* data have 2 classes"),
    ],
)
def test_one_line_names_what_is_wrong(net, message):
    with pytest.raises(BadModel, match=message) as caught:
        check(net, (1, 4, 4), 2)
    assert "\n" not in str(caught.value)


def test_features_must_be_flat():
    class Deep(Net):
        def join(self, x):
            return x.reshape(len(x), 3, -1)

    with pytest.raises(BadModel, match=r"features\(x\) gives shape \[2, 3, 4\].*flatten or pool"):
        check(Deep(width=12), (1, 4, 4), 2)


def test_forward_must_be_head_of_features():
    class Soft(Net):
        def forward(self, x):
            return super().forward(x).softmax(1)

    with pytest.raises(BadModel, match="no softmax"):
        check(Soft(width=12), (1, 4, 4), 2)
