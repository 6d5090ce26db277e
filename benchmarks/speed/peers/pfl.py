"""pfl-research, Apple's simulator: its own loop, with tensors on the device and no evaluation."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F
from turns import Turns
from works import Work, network, tensors

_HELD = 1000  # clients whose data stay ready
_ROUNDS = 10_000


class _Learner(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.losses: list[Tensor] = []

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.inner.train()
        found = F.cross_entropy(self.inner(x), y)
        self.losses.append(found.detach().clone())  # pfl divides the loss in place
        return found

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class _Turn(TrainingProcessCallback):
    """A turn after every round of the server."""

    def __init__(self, turns: Turns, learner: _Learner) -> None:
        self._turns, self._learner = turns, learner

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        loss = float(torch.stack(self._learner.losses).mean())
        self._learner.losses.clear()
        return not self._turns.next(loss), Metrics()


def play(work: Work, device: str, turns: Turns) -> None:
    """Train."""
    data = tensors(work)

    @functools.lru_cache(_HELD)
    def dataset(k: int) -> PyTorchTensorDataset:
        x, y = data(k)
        return PyTorchTensorDataset((x.to(device), y.to(device)), user_id=str(k))

    for k in range(min(_HELD, work.clients)):
        dataset(k)
    turns.data_are_here()
    learner = _Learner(network(work))
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    # each cohort is another stretch of one shuffled row of clients
    order = torch.randperm(work.clients, generator=torch.Generator().manual_seed(0)).tolist()
    row = itertools.cycle(order)
    federated = FederatedDataset(dataset, lambda: next(row))
    backend = SimulatedBackend(training_data=federated, val_data=federated)
    if not turns.next():
        return
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_ROUNDS,
            evaluation_frequency=_ROUNDS * 10,
            train_cohort_size=work.sampled or work.clients,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        callbacks=[_Turn(turns, learner)],
    )
