"""Seeds of one method, trained at once: their clients are rows of the same stack.

Runs that differ in their seed alone have trips of the same form. In the stacked engine a round of
all of them costs little more than a round of one, as long as one does not fill the device. Each
run aggregates, scores and saves for itself, so its folder and its numbers are those of a run alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from fedshift.engines import choice
from fedshift.errors import BadValue
from fedshift.plan import precision
from fedshift.run import Interrupted, Line, Run
from fedshift.trip import Result

OnRound = Callable[[Run, Line], None]


def fit(runs: Sequence[Run]) -> bool:
    """Whether playing such runs at once pays: where their clients are stacked."""
    return all(run.engine_name == "stacked" for run in runs)


def groups(make: Callable[[int], Run], seeds: Iterable[int]) -> Iterator[list[Run]]:
    """The runs of some seeds as they are best played: all at once where that pays, else singly.

    A run that is played by itself is made when it is its turn.
    """
    left = iter(seeds)
    for seed in left:
        first = make(seed)
        others = left if fit([first]) else ()
        yield [first, *(make(other) for other in others)]


def play(runs: Sequence[Run], on_round: OnRound = lambda run, line: None) -> None:
    """Play runs that differ in their seed alone; `on_round` gets the line of each round of each.

    >>> import fedshift as fs
    >>> data, protocol = fs.data.load("shifted-digits"), fs.Protocol(rounds=1, steps=1, batch=8)
    >>> runs = [fs.Run(data, "fedavg", protocol, "mlp", seed=s, engine="stacked") for s in (0, 1)]
    >>> play(runs)
    >>> [run.progress.done for run in runs]
    [1, 1]
    """
    if len(runs) == 1 or not fit(runs):
        for run in runs:
            run.play(on_round)
        return
    _check(runs)
    first = runs[0]
    for run in runs:
        run.begin()
    engine = choice.start(first.plan, first.federation, "stacked", first.chunk)
    try:
        with precision(first.dtype):
            while going := [run for run in runs if not run.ended]:
                start = time.perf_counter()
                behind = _behind(going)
                jobs = [run.due() for run in behind]
                whole = engine.play(list(itertools.chain(*jobs)))
                for run, own, part in zip(behind, jobs, parts(whole, list(map(len, jobs)))):
                    on_round(run, run.took(own, part, start))
        for run in runs:
            run.finish()
    except KeyboardInterrupt:
        raise Interrupted("; ".join(run.save_interrupted() for run in runs)) from None
    finally:
        engine.close()


def _behind(runs: Sequence[Run]) -> list[Run]:
    """Those that have played least: after a resumption some may be ahead."""
    place = min((run.progress.stage, run.progress.round) for run in runs)
    return [run for run in runs if (run.progress.stage, run.progress.round) == place]


def parts(whole: Result, sizes: Sequence[int]) -> Iterator[Result]:
    """The results of each run, in order, out of that of all."""
    at = 0
    for size in sizes:
        rows = slice(at, at + size)
        yield Result(
            clients=whole.clients[rows],
            model={n: t[rows] for n, t in whole.model.items()},
            extras={n: t[rows] for n, t in whole.extras.items()},
            kinds=whole.kinds,
            kept=whole.kept[rows],
            losses={n: t[rows] for n, t in whole.losses.items()},
            seconds=whole.seconds[rows],
        )
        at += size


def _check(runs: Sequence[Run]) -> None:
    """Refuse runs that differ in more than their seed."""

    def told(run: Run) -> dict[str, object]:
        return {n: v for n, v in run.config().items() if n != "seed"}

    for run in runs[1:]:
        if told(run) != told(runs[0]):
            what = next(n for n, v in told(run).items() if told(runs[0]).get(n) != v)
            raise BadValue(f"runs played together differ in '{what}': play them one by one")
