"""Playing a method for two short rounds of every stage, and writing down what goes where."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedshift import aggregate, data, keys
from fedshift.aggregate import Server
from fedshift.compose import Composed
from fedshift.engines import Engine
from fedshift.federation import Client, Federation, Samples
from fedshift.hparam import hypers
from fedshift.method import Method
from fedshift.models.spec import seeded
from fedshift.net import tensors_of
from fedshift.protocol import Protocol
from fedshift.run import Run
from fedshift.trip import Job, Result
from fedshift.wire.items import Wire
from fedshift.wire.needs import Needs, tried
from fedshift.wire.writing import Seen, Writer, handed_over

DATA = "shifted-digits"
# Clients with unequal work, since a server may treat them differently then.
PROTOCOL = Protocol(rounds=2, epochs=1, batch=8, lr=0.01, weights="uniform", eval_every=1000)
_SAMPLES = (16, 8)
_DURATIONS = ("steps", "epochs", "batches", "rounds", "iterations")


def observe(
    method: Method | Composed,
    federation: Federation | None = None,
    model: Any = None,
    keep: Collection[str] = (),
) -> Wire:
    """Play a method and see what crosses.

    Args:
        method: at the values in question.
        federation: whose shapes, classes and clients count (None: the embedded one); of its samples
            a few are enough.
        model: as for `Run` (None: the network that the method gives as its example).
        keep: hyperparameters ("method.name") that stay as they are, however long they take.

    >>> from fedshift import methods
    >>> wire = observe(methods.make("fedcm"), model="mlp")
    >>> [(item.name, item.shape) for item in wire.select("up", of_model=False)]
    [('fedcm/way', (1,))]
    """
    whole = federation or data.load(DATA)
    method = Composed.of(method)
    short = shortened(method, keep)
    run = _WatchedRun(
        _small(whole),
        _with(method, short),
        PROTOCOL,
        model or method.parts[0].example_model,
        engine="loop",
        workers=1,
        device="cpu",
        warn=lambda text: None,
    )
    run.play()
    if method.pooled:
        items = handed_over(whole.clients[0])
    else:
        items = Writer(run.plan, _own(run)).everything(run.watched.seen)
    return Wire(
        method=method.name,
        data=whole.name,
        model=run.spec.name,
        clients=len(whole.clients),
        settings=short,
        stages=run.stages,
        items=tuple(items),
        pooled=method.pooled,
    )


def shortened(method: Composed, keep: Collection[str] = ()) -> dict[str, Any]:
    """The least values of hyperparameters that say how long something slow takes, by "method.name".

    Others keep their values, since widths and numbers are what shapes are made of.

    >>> from fedshift import methods
    >>> shortened(methods.make("fedgenp"))
    {'fedgenp.gen_steps': 1}
    """
    return {
        f"{p.name}.{n}": max(1, int(h.low or 0))
        for p in method.parts
        for n, h in hypers(p).items()
        if h.quick is not None
        and n.rpartition("_")[2] in _DURATIONS
        and f"{p.name}.{n}" not in keep
    }


def _with(method: Composed, settings: Mapping[str, Any]) -> Composed:
    """The method with some of its hyperparameters ("method.name") changed."""
    return Composed.of(
        *(
            dataclasses.replace(
                p,
                **{n: settings[f"{p.name}.{n}"] for n in hypers(p) if f"{p.name}.{n}" in settings},
            )
            for p in method.parts
        )
    )


def _small(federation: Federation) -> Federation:
    """The same clients with a few samples each."""
    count = itertools.cycle(_SAMPLES)

    def few(client: Client) -> Client:
        n = next(count)
        parts = (client.train, client.val, client.test)
        return Client(client.name, *(Samples(s.x[:n], s.y[:n]) for s in parts))

    return federation.map(few)


# ---------------------------------------------------------------------------- watching


class _Watched:
    """An engine that writes down what goes through it, and what the server needs of it."""

    name = "watched"

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine, self._run = engine, run
        self.seen: list[Seen] = []

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips and remember them."""
        result = self._engine.play(jobs)
        stage, method = jobs[0].stage, self._run.method
        last = jobs[0].round + 1 == stage.rounds
        served = stage.program != "tune" and not method.pooled
        needs = self._needs(jobs, result) if last and served else Needs()
        self.seen.append(Seen(stage, jobs, result, needs))
        return result

    def _needs(self, jobs: Sequence[Job], result: Result) -> Needs:
        run, stage, round = self._run, jobs[0].stage, jobs[0].round
        key = keys.fold(run.seed, "server", stage.name, round)

        def step(result: Result, samples: Mapping[str, int]) -> Server:
            server = run.progress.server  # as before the round: it has not ended
            return aggregate.absorb(run.plan, server, result, samples, round, key, stage.name)

        return tried(step, result, {job.client: job.samples for job in jobs})

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


class _WatchedRun(Run):
    """A run whose engine is watched."""

    def _start_engine(self) -> Engine:
        self.watched = _Watched(super()._start_engine(), self)
        return self.watched


def _own(run: Run) -> frozenset[str]:
    """Names of the tensors that are the network's, wherever the method has put them."""
    facts = run.plan.facts
    with seeded(0):
        network = run.spec.build(facts.shape, facts.classes, 0, facts.task)
        before = tensors_of(network)  # held, so that nothing new gets the identity of what is gone
        parts = {id(t) for t in before.values()}
        built = tensors_of(run.method.build(network, facts))
    return frozenset(name for name, t in built.items() if id(t) in parts)
