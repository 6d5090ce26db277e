"""The loop that most papers' code has: a DataLoader and a copy of the model for each client."""

from __future__ import annotations

import copy
import random

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from turns import Turns
from works import Work, network, tensors


def play(work: Work, device: str, turns: Turns) -> None:
    """Train."""
    data = tensors(work)
    turns.data_are_here()
    model = network(work).to(device)
    drawing = random.Random(0)
    loss: float | None = None
    while turns.next(loss):
        chosen = drawing.sample(range(work.clients), work.sampled or work.clients)
        states, losses = [], []
        for k in sorted(chosen):
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=work.lr)
            loader = DataLoader(TensorDataset(*data(k)), batch_size=work.batch, shuffle=True)
            for x, y in loader:
                x, y = x.to(device), y.to(device)
                optimizer.zero_grad()
                found = F.cross_entropy(local(x), y)
                found.backward()
                optimizer.step()
                losses.append(found.detach())
            states.append(local.state_dict())
        mean = {n: sum(s[n] for s in states) / len(states) for n in states[0]}
        model.load_state_dict(mean)
        loss = float(torch.stack(losses).mean())
