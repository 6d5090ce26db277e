"""Flower's simulation on Ray: an actor per core (on a GPU as many, sharing it)."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Any

from fedshift.engines.flower.quiet import environment

os.environ.update(environment())  # before Flower and Ray are imported, or they call home

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn import functional as F
from turns import Turns
from works import Work, network, tensors

_ROUNDS = 10_000


class _Over(Exception):
    """No more turns."""


@functools.cache  # in each actor once
def _data(work: Work) -> Any:
    return functools.lru_cache(1000)(tensors(work))


@functools.cache
def _network(work: Work, device: str) -> nn.Module:
    torch.set_num_threads(1)
    return network(work).to(device)


def _client(work: Work, device: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = _network(work, device)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.train()
        x, y = (t.to(device) for t in _data(work)(int(context.node_config["partition-id"])))
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
        losses: list[Tensor] = []
        for batch in torch.randperm(len(x), device=device).split(work.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found = {"loss": float(torch.stack(losses).mean()), "num-examples": len(x)}
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(found)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


class _Turning(FedAvg):
    """FedAvg with a turn before every round."""

    turns: Turns
    loss: float | None = None

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        if not self.turns.next(self.loss):
            raise _Over
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
        arrays, metrics = super().aggregate_train(*args, **kwargs)
        self.loss = None if metrics is None else float(metrics["loss"])
        return arrays, metrics


def play(work: Work, device: str, turns: Turns) -> None:
    """Train."""
    turns.data_are_here()  # the actors hold them, each its own
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        share = (work.sampled or work.clients) / work.clients
        strategy = _Turning(
            fraction_train=share, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        strategy.turns = turns
        try:
            strategy.start(grid, ArrayRecord(network(work).state_dict()), num_rounds=_ROUNDS)
        except _Over:
            return

    cores = len(os.sched_getaffinity(0))
    resources = {"num_cpus": 1, "num_gpus": 1 / cores if device == "cuda" else 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces its successor at every call
        run_simulation(
            server_app=server,
            client_app=_client(work, device),
            num_supernodes=work.clients,
            backend_config={"client_resources": resources},
        )
