"""Trial runs: draws that no key reaches, and models on which clients cannot be stacked."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.models import stackable, unkeyed
from fedshift.models.registry import construct

IMAGES = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
ROWS = IMAGES[..., 0, :4].reshape(4, 4)


class Coin(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip

    def forward(self, x):
        return x * self.flip()


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return y if y.sum() > 0 else -y


class Recurrent(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, num_layers=2, dropout=dropout)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.parametrize(
    ("flip", "whose"),
    [(random.random, "Python"), (lambda: np.random.rand(), "numpy")],
)
def test_draws_of_other_libraries_are_named_and_put_back(flip, whose):
    states = random.getstate(), np.random.get_state()[1].tolist()
    model = nn.Sequential(nn.Dropout(0.5), Coin(flip))
    assert unkeyed(model, ROWS) == [f"1 (Coin) draws from {whose}'s global generator"]
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


def test_keyed_draws_are_not_named():
    model = nn.Sequential(nn.Dropout(0.5), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1))
    assert unkeyed(model, ROWS) == []


@pytest.mark.parametrize("name", ["mlp", "fedavg-cnn", "lenet", "small-cnn"])
def test_networks_stack(name):
    assert stackable(construct(name, (1, 16, 16), 3), IMAGES) is None


TOKENS = ROWS.expand(3, 4, 4)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), TOKENS),
        (nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Dropout()), ROWS),
        (nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4)), TOKENS),
    ],
)
def test_common_layers_stack(model, x):
    assert stackable(model, x) is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Recurrent(0.5), "rnn (LSTM) draws from torch's global generator, which no key reaches"),
        (Branch(), "Branch does not run for stacked clients"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)),
            "1 (BatchNorm1d) does not run for stacked clients",
        ),
    ],
)
def test_reasons_name_the_module(model, reason):
    before = copy.deepcopy(model.state_dict())
    answer = stackable(model, ROWS)
    assert answer is not None and answer.startswith(reason) and "\n" not in answer
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
