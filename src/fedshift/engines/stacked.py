"""All clients of a round at once on one device; on a GPU each step is replayed as a CUDA graph.

Cohorts that do not fit into memory are played in chunks of equal size; the chunk is fixed when the
run begins, so that a resumed run repeats it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.batches import Pool
from fedshift.federation import Federation
from fedshift.method import Phase
from fedshift.plan import Plan
from fedshift.tree import Tree, nbytes
from fedshift.trip import Job, Result, Trip, _Work

_WARM_UPS = 3  # passes before a capture, so that libraries have allocated and chosen what they use
_SHARE = 0.6  # of the free memory may be filled by a chunk


class Stacked:
    """Plays trips together, `chunk` clients at a time.

    Args:
        plan: what is the same for all trips.
        federation: whose clients train.
        chunk: clients at a time (0: as many as fit).
    """

    name = "stacked"

    def __init__(self, plan: Plan, federation: Federation, chunk: int = 0) -> None:
        pool = Pool.of([c.train for c in federation.clients], plan.device)
        longest = max(plan.protocol.local_work(len(c.train)) for c in federation.clients)
        kind = Replayed if plan.device.type == "cuda" else Trip
        self.chunk = chunk or max(1, fitting(plan))
        self._trip = kind(plan, pool, mapped=True)
        if isinstance(self._trip, Replayed):
            self._trip.longest = longest

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips in chunks, the longest first: who is done leaves the stack."""
        order = sorted(range(len(jobs)), key=lambda k: -jobs[k].steps)
        size = even_chunk(len(jobs), self.chunk)
        chunks = [[jobs[k] for k in order[i : i + size]] for i in range(0, len(jobs), size)]
        return sorted_back(merge([self._trip.play(c) for c in chunks]), order)

    def close(self) -> None:
        """Give graphs and their memory back."""
        if isinstance(self._trip, Replayed):
            self._trip.forget()


def merge(results: Sequence[Result]) -> Result:
    """Several results as one, in order."""
    if len(results) == 1:
        return results[0]

    def cat(trees: list[Tree]) -> Tree:
        return {n: torch.cat([t[n] for t in trees]) for n in trees[0]}

    return Result(
        clients=[c for r in results for c in r.clients],
        model=cat([r.model for r in results]),
        extras=cat([r.extras for r in results]),
        kinds=results[0].kinds,
        kept=[k for r in results for k in r.kept],
        losses=cat([r.losses for r in results]),
        seconds=[s for r in results for s in r.seconds],
    )


def sorted_back(result: Result, order: Sequence[int]) -> Result:
    """A result whose entry i is about job order[i], in the order of the jobs."""
    if list(order) == sorted(order):
        return result
    back = sorted(range(len(order)), key=lambda i: order[i])

    def rows(tree: Tree) -> Tree:
        at = {t.device: torch.tensor(back, device=t.device) for t in tree.values()}
        return {n: t.index_select(0, at[t.device]) for n, t in tree.items()}

    return dataclasses.replace(
        result,
        clients=[result.clients[i] for i in back],
        model=rows(result.model),
        extras=rows(result.extras),
        kept=[result.kept[i] for i in back],
        losses=rows(result.losses),
        seconds=[result.seconds[i] for i in back],
    )


def even_chunk(jobs: int, limit: int) -> int:
    """The smallest chunk that needs no more chunks than the limit does.

    >>> even_chunk(100, 60), even_chunk(100, 200)
    (50, 100)
    """
    chunks = -(-jobs // max(1, limit))
    return -(-jobs // chunks)


def fitting(plan: Plan) -> int:
    """How many clients fit: parameters six times over, and three times what a step lays out."""
    if plan.device.type != "cuda":
        return 1 << 30
    free, _ = torch.cuda.mem_get_info(plan.device)
    torch.cuda.reset_peak_memory_stats(plan.device)
    held = torch.cuda.memory_allocated(plan.device)
    x = torch.zeros((plan.protocol.batch, *plan.facts.shape), device=plan.device, dtype=plan.dtype)
    plan.model.eval()
    with unfolded_bytes(plan.model) as patches:
        plan.model.head(plan.model.features(x)).sum()  # type: ignore[operator]
    activations = max(0, torch.cuda.max_memory_allocated(plan.device) - held) + sum(patches)
    one = 6 * nbytes(plan.tensors) + 3 * len(plan.phases) * activations
    return int(_SHARE * free / max(1, one))


@contextmanager
def unfolded_bytes(model: nn.Module) -> Iterator[list[int]]:
    """Collect, for every convolution that runs, the bytes of its patches (`fedshift.layers`)."""
    found: list[int] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        positions = output.numel() // output.shape[-3]
        found.append(positions * module.weight[0].numel() * output.element_size())

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors of nested dictionaries, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for name in sorted(tree):
            yield from _tensors(tree[name])


@dataclasses.dataclass
class _Static:
    """The working tensors that graphs of one shape write to, and the graphs."""

    work: _Work
    graphs: dict[tuple[tuple[str, ...], bool, int], torch.cuda.CUDAGraph]


class Replayed(Trip):
    """A trip whose steps are captured once per shape and replayed.

    What graphs read and write stays where it is: each round copies its tensors in.
    """

    longest = 1

    def __init__(self, plan: Plan, pool: Pool, mapped: bool) -> None:
        super().__init__(plan, pool, mapped)
        self._statics: dict[Any, _Static] = {}
        self._now: _Static | None = None
        # one graph after another works in the same memory: none leaves anything there
        self._pool = torch.cuda.graph_pool_handle()

    def forget(self) -> None:
        """Drop all graphs."""
        self._statics.clear()
        self._now = None

    def begin(self, jobs: Sequence[Job], longest: int) -> _Work:
        """As usual, then copied to where the graphs look."""
        fresh = super().begin(jobs, max(longest, self.longest))
        if longest == 0:
            return fresh
        signature = (jobs[0].stage.name, *(_shape(t) for t in _all(fresh)))
        static = self._statics.get(signature)
        if static is None:
            # copies: some of these are the server's and the clients' own tensors
            static = self._statics[signature] = _Static(_own(fresh), {})
        else:
            for old, new in zip(_all(static.work), _all(fresh), strict=True):
                old.copy_(new)
            for total in static.work.losses.values():
                total.zero_()
        self._now = static
        return static.work

    def step(self, work: _Work, t: int, masked: bool) -> None:
        """Replay the graph of this kind of step; capture it the first time."""
        due = tuple(p for p in self.plan.phases if p.due(t))
        static = self._now
        assert static is not None and static.work is (work.whole or work)
        kind = (tuple(p.name for p in due), masked, work.rows)
        if kind not in static.graphs:
            static.graphs[kind] = self._capture(work, due, masked)
        static.graphs[kind].replay()

    def _out(self, tensor: Tensor) -> Tensor:
        """A copy: the next round writes where this one did."""
        return super()._out(tensor).clone()

    def _rows(self, tree: Tree, count: int) -> list[Tree]:
        """Copies, for the same reason."""
        return super()._rows({n: t.clone() for n, t in tree.items()}, count)

    def _capture(self, work: _Work, due: tuple[Phase, ...], masked: bool) -> torch.cuda.CUDAGraph:
        """Run the step a few times on a side stream, put everything back, then record it."""
        body: Callable[[], None] = lambda: self.body(work, due, masked)  # noqa: E731
        before = [t.detach().clone() for t in _moving(work)]
        totals = {n: t.clone() for n, t in work.losses.items()}
        side = torch.cuda.Stream(self.plan.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.plan.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                body()
                work.t.sub_(1)  # a step past the last one would look past the order of samples
        torch.cuda.current_stream(self.plan.device).wait_stream(side)
        for tensor, old in zip(_moving(work), before, strict=True):
            tensor.detach().copy_(old)
        for name, total in work.losses.items():
            total.copy_(totals[name]) if name in totals else total.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            body()
        return graph


def _own(work: _Work) -> _Work:
    """The same work on tensors that nobody else looks at."""
    dyn = {
        name: {n: t.clone() for n, t in value.items()} if isinstance(value, dict) else value.clone()
        for name, value in work.dyn.items()
    }
    return dataclasses.replace(work, dyn=dyn)


def _moving(work: _Work) -> list[Tensor]:
    """What a step changes, except for the losses."""
    return [*_tensors(work.params), *_tensors(work.buffers), *_tensors(work.state), work.t]


def _all(work: _Work) -> list[Tensor]:
    """Everything that a step reads or changes, except for the losses."""
    others = (work.dyn, work.rates, work.table, work.first, work.length)
    return [*(t.detach() for t in _moving(work)), *(t for o in others for t in _tensors(o))]


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    return (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
