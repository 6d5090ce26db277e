"""What clients do in one round, on every engine: the only code in which a client learns.

A `Trip` plays one client after another (`mapped=False`, on the model's own tensors), or all of them
at once (`mapped=True`: every tensor has a leading client axis, and what looks at one client runs
under `torch.vmap`). The arithmetic is the same. The body of a step touches only tensors that stay
where they are, so that a CUDA graph can replay it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedshift import keys, noising, task
from fedshift.batches import Pool, View, order
from fedshift.draws import keyed
from fedshift.layers import fast
from fedshift.method import Ctx, Phase, Report, Stage, State, tensors_of
from fedshift.net import Net
from fedshift.optim import clip_
from fedshift.plan import Plan
from fedshift.tree import Tree, pick, under, with_prefix

Call = Callable[..., Any]
_SEEDS = (1 << 63) - 1  # what torch's generators take


@dataclasses.dataclass(frozen=True)
class Job:
    """One client's trip: everything that comes to it, and where its data lie in the pool.

    `model` holds the server's tensors, `kept` what the client kept ("model/…" of the model,
    "optimizer/…", "METHOD/…" of the methods).
    """

    client: str
    stage: Stage
    round: int
    lr: float
    key: int
    payload: State
    model: Tree
    kept: Tree
    place: int
    samples: int
    steps: int


@dataclasses.dataclass
class Result:
    """What comes back from trips, stacked in the order of the jobs.

    `model` and `extras` go up, `kinds` says how each extra may be used; `kept` stays with the
    clients; `losses` are means over the steps taken; `seconds` is each client's time, an equal
    share where clients train together.
    """

    clients: list[str]
    model: Tree
    extras: Tree
    kinds: dict[str, str]
    kept: list[Tree]
    losses: Tree
    seconds: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Work:
    """The tensors of the trips in progress."""

    params: Tree
    buffers: Tree
    dyn: dict[str, Any]
    dims: dict[str, Any]
    state: dict[str, Tree]
    rates: dict[str, Tensor]
    table: Tensor
    first: Tensor
    t: Tensor
    length: Tensor
    losses: Tree
    rows: int = 1
    whole: _Work | None = None  # of which these are the first rows

    def front(self, rows: int) -> _Work:
        """The first clients alone, on the same memory."""
        if rows == self.rows:
            return self

        def cut(tree: Any, dims: Any) -> Any:
            if isinstance(tree, dict):
                return {
                    n: cut(t, dims[n] if isinstance(dims, dict) else dims) for n, t in tree.items()
                }
            return tree if dims is None else tree[:rows]

        parts = {
            n: cut(getattr(self, n), 0)
            for n in ("params", "buffers", "state", "table", "first", "length", "losses")
        }
        dyn = cut(self.dyn, self.dims["dyn"])
        return dataclasses.replace(self, **parts, dyn=dyn, rows=rows, whole=self)


_EXACT = 4  # so few clients are left out one by one as they finish, more by halves


def standing(steps: Sequence[int], t: int) -> int:
    """How many of the first clients take step t; by few different numbers, so a few may be done.

    The steps fall from client to client.

    >>> [standing([9, 5, 5, 2, 2, 2, 1, 1], t) for t in range(6)]
    [8, 8, 3, 3, 3, 1]
    """
    needed, rows = sum(s > t for s in steps), len(steps)
    if needed <= _EXACT:
        return needed
    while -(-rows // 2) >= needed:
        rows = -(-rows // 2)
    return rows


class Trip:
    """Plays trips of a plan over a pool of data.

    Args:
        plan: what is the same for all trips.
        pool: the training samples that jobs point into.
        mapped: all clients at once instead of one after another.
    """

    def __init__(self, plan: Plan, pool: Pool, mapped: bool) -> None:
        self.plan = plan
        self.pool = pool
        self.mapped = mapped
        self.kinds: dict[str, str] = {}
        self._trained = plan.trained
        self._shared = plan.shared
        self._optimizers = {p.name: plan.optimizer(p) for p in plan.phases}
        self._replaced = plan.method.has("gradient")
        # whether a step needs its number, epoch and key at all
        hooks = ("batch", "loss", "gradient", "correct")
        self._looks = plan.random or bool(plan.unkeyed) or any(map(plan.method.has, hooks))
        self._parameters = dict(plan.model.named_parameters())
        self._modes_set: str | None = None

    # -- a whole trip --------------------------------------------------------------------------

    def play(self, jobs: Sequence[Job]) -> Result:
        """Take all jobs (one, unless mapped; those with most steps first) from start to report."""
        began = time.perf_counter()
        program = jobs[0].stage.program
        steps = [0 if program == "collect" else j.steps for j in jobs]
        work = now = self.begin(jobs, max(steps))
        for t in range(max(steps)):
            rows = standing(steps, t)
            now = now if rows == now.rows else work.front(rows)
            self.step(now, t, masked=t >= steps[rows - 1])
        result = self.finish(jobs, work)
        if self.plan.device.type == "cuda":
            torch.cuda.synchronize(self.plan.device)
        result.seconds = [(time.perf_counter() - began) / len(jobs)] * len(jobs)
        return result

    def begin(self, jobs: Sequence[Job], longest: int) -> _Work:
        """Lay out the working tensors, draw the order of samples, run `start`."""
        plan, p = self.plan, self.plan.protocol
        self._modes_set = None  # others run the same modules in between
        device, rows = plan.device, len(jobs) if self.mapped else None
        dyn, dims = self._gather(jobs)
        start = self._starting_tensors(jobs)
        params = {n: start[n] for n in self._parameters}
        buffers = {n: t for n, t in start.items() if n not in params}
        count = self._host([j.samples for j in jobs], torch.int64)
        key = dyn["key"]
        table = order(
            key,
            count,
            max(longest, 1),
            p.batch,
            max(j.samples for j in jobs),
            min(j.samples for j in jobs),
        )
        work = _Work(
            params=params,
            buffers=buffers,
            dyn=dyn,
            dims=dims,
            state={},
            rates={},
            table=table,
            first=self._host([self.pool.first[j.place] for j in jobs], torch.int64),
            t=torch.zeros((), dtype=torch.int64, device=device),
            length=self._host([p.epoch_length(j.samples) for j in jobs], torch.int64),
            losses={},
            rows=len(jobs),
        )
        scale = 1.0 if p.lr == 0 else jobs[0].lr / p.lr
        for phase in plan.phases:
            names = self._names(phase)
            state = self._optimizers[phase.name].init(pick(params, names), rows)
            kept = [under(f"optimizer/{phase.name}", j.kept) for j in jobs]
            for name, tensor in state.items():
                old = [k.get(name) for k in kept]
                if any(o is not None for o in old):
                    zero = tensor[0] if self.mapped else tensor
                    tensor.copy_(self._stacked([zero if o is None else o for o in old]))
            work.state[phase.name] = state
            rate = jobs[0].lr if phase.lr is None else phase.lr * scale
            work.rates[phase.name] = torch.tensor(rate, dtype=plan.dtype, device=device)
        if plan.method.has("start"):
            self._modes((), force=True)
            view, dims_view = self._view(jobs)
            fixed = self._over(self._start)(
                (dims["dyn"], 0, dims_view), dyn, {**params, **buffers}, view
            )
            dyn["fixed"] = {n: t.detach().contiguous() for n, t in fixed.items()}
            dims["dyn"]["fixed"] = dict.fromkeys(dyn["fixed"], 0)
        return work

    def finish(self, jobs: Sequence[Job], work: _Work) -> Result:
        """Run `report` and sort what goes up from what is kept."""
        plan = self.plan
        tensors = {**work.params, **work.buffers}
        keep: Tree = {}
        extras: Tree = {}
        if plan.method.has("report"):
            self._modes((), force=True)
            view, dims_view = self._view(jobs)
            # a client that was done early is at its own last step, wherever the others went
            here = self._moment(work, torch.minimum(work.t, work.dyn["steps"]))
            dyn = {**work.dyn, **here}
            dims = {**work.dims["dyn"], **self._moment_dims(), "step": 0}
            up = self._over(self._report)((dims, 0, dims_view), dyn, tensors, view)
            extras = {n: t.detach() for n, t in up["up"].items()}
            keep = {n: t.detach() for n, t in up["keep"].items()}
        program = jobs[0].stage.program
        if program == "tune" or (program == "train" and plan.method.scores_trained):
            keep |= with_prefix("tuned", tensors)
        if program in ("train", "collect"):
            keep |= with_prefix("model", pick(tensors, plan.own))
        if program in ("train", "tune") and not plan.protocol.reset_optimizer:
            for name, state in work.state.items():
                keep |= with_prefix(f"optimizer/{name}", state)
        model = pick(tensors, plan.up) if program == "train" else {}
        taken = self._host(
            [max(1, 0 if program == "collect" else j.steps) for j in jobs], plan.dtype
        )
        model, extras = self._leaving(
            {n: self._out(t) for n, t in model.items()},
            {n: self._out(t) for n, t in extras.items()},
            work,
        )
        return Result(
            clients=[j.client for j in jobs],
            model=model,
            extras=extras,
            kinds=dict(self.kinds),
            kept=[
                {**{n: t for n, t in j.kept.items() if n not in keep}, **own}
                for j, own in zip(jobs, self._rows(keep, len(jobs)))
            ],
            losses={n: self._out(t / taken) for n, t in self._told(work).items()},
        )

    def _leaving(self, model: Tree, extras: Tree, work: _Work) -> tuple[Tree, Tree]:
        """What goes up, clipped and perhaps noised where the run has privacy."""
        if self.plan.privacy is None:
            return model, extras
        dims, initial = work.dims["dyn"]["initial"], work.dyn["initial"]
        each = {n: initial[n] if self.mapped and dims[n] == 0 else initial[n][None] for n in model}
        key = work.dyn["key"].reshape(-1)
        return noising.leave(self.plan.privacy, model, extras, each, self._shared, key)

    def _told(self, work: _Work) -> Tree:
        """The losses; a client that trusts no server does not tell them."""
        local = self.plan.privacy is not None and self.plan.privacy.local
        return {} if local else work.losses

    # -- one local step ------------------------------------------------------------------------

    def step(self, work: _Work, t: int, masked: bool) -> None:
        """Local step t; `masked` when some rows have already finished."""
        due = tuple(p for p in self.plan.phases if p.due(t))
        self.body(work, due, masked)

    def body(self, work: _Work, due: tuple[Phase, ...], masked: bool) -> None:
        """The device's part of a step: nothing here depends on host numbers that change."""
        active = work.t < work.dyn["steps"] if masked and self.mapped else None
        x, y = self._fetch(work)
        dyn, dims = work.dyn, work.dims["dyn"]
        if self._looks:
            dyn, dims = {**dyn, **self._moment(work)}, {**dims, **self._moment_dims()}
        if self.plan.method.has("batch"):
            x, y = self._over(self._batch)((dims, 0, 0), dyn, x, y)
        pending: list[tuple[Phase, Tree]] = []
        for phase in due:
            if pending and not phase.together:
                self._apply(work, pending, active)
                pending = []
            pending.append((phase, self._gradient(work, phase, x, y, dyn, dims, active)))
        self._apply(work, pending, active)
        work.t.add_(1)

    def _fetch(self, work: _Work) -> tuple[Tensor, Tensor]:
        """The step's batch, normalised and augmented: [B, ...], or [K, B, ...] when mapped."""
        index = work.table.index_select(-2, work.t.view(1)).squeeze(-2)
        x, y = self.pool.take(index + work.first[..., None])
        each: Tensor | None = None
        if self.plan.pipeline.augment:
            here = keys.fold_in(keys.fold_in(work.dyn["key"], work.t), "augment")
            sample = torch.arange(index.shape[-1], device=index.device)
            each = keys.fold_in(here[..., None], sample).reshape(-1)
            if self.plan.facts.task == "segmentation":
                y = self.plan.pipeline.labels(y, each, self.plan.dtype)
        x = self.plan.pipeline(x, each, self.plan.dtype)
        return x.reshape(*index.shape, *x.shape[1:]), y.reshape(*index.shape, *y.shape[1:])

    def _gradient(
        self,
        work: _Work,
        phase: Phase,
        x: Tensor,
        y: Tensor,
        dyn: dict[str, Any],
        dims: dict[str, Any],
        active: Tensor | None,
    ) -> Tree:
        """A phase's gradient, signed, corrected and clipped; its buffers and losses move."""
        self._modes(phase.training)
        names = self._names(phase)
        before = {n: b.clone() for n, b in work.buffers.items()} if active is not None else {}
        find = self._replaced_gradient if self._replaced else self._plain_gradient
        grads, losses = find(work, phase, names, x, y, dyn, dims)
        for name, old in before.items():
            new = work.buffers[name]
            new.copy_(torch.where(_broadcast(active, new), new, old))
        self._count(work, losses, active)
        if phase.sign != 1.0:
            grads = {n: phase.sign * g for n, g in grads.items()}
        if self.plan.method.has("correct"):
            params = {n: p.detach() for n, p in pick(work.params, names).items()}
            correct = self._over(lambda d, g, p: self._correct(phase.name, d, g, p))
            grads = correct((dims, 0, 0), dyn, grads, params)
        if self.plan.protocol.clip:
            clip_(grads, self.plan.protocol.clip, x.shape[0] if self.mapped else None)
        return grads

    def _plain_gradient(
        self,
        work: _Work,
        phase: Phase,
        names: tuple[str, ...],
        x: Tensor,
        y: Tensor,
        dyn: dict[str, Any],
        dims: dict[str, Any],
    ) -> tuple[Tree, Tree]:
        """By plain autograd over the (mapped) loss: rows do not touch, so one sum serves all."""
        leaves = [work.params[n].requires_grad_() for n in names]
        others = [p for n, p in work.params.items() if n not in set(names)]
        for other in others:
            other.requires_grad_(False)
        with torch.enable_grad():
            if self.mapped:
                run = self._over(lambda d, p, b, x, y: self._terms(phase, d, {**p, **b}, x, y))
                terms = run((dims, 0, 0, 0, 0), dyn, work.params, work.buffers, x, y)
            else:
                terms = self._terms(phase, dyn, None, x, y)
            total = sum(t.sum() for t in terms.values())
            grads = torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]
        found = {
            n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, leaves, grads)
        }
        for leaf in leaves:
            leaf.requires_grad_(False)
        return found, {n: t.detach() for n, t in terms.items()}

    def _replaced_gradient(
        self,
        work: _Work,
        phase: Phase,
        names: tuple[str, ...],
        x: Tensor,
        y: Tensor,
        dyn: dict[str, Any],
        dims: dict[str, Any],
    ) -> tuple[Tree, Tree]:
        """By the method's own rule over a pure function of the trained tensors."""

        def one(dyn: Any, params: Tree, buffers: Tree, x: Tensor, y: Tensor) -> Any:
            rest = {n: p for n, p in params.items() if n not in set(names)}
            objective = _Objective(self, phase, dyn, rest, buffers, x, y)
            ctx = self._ctx(dyn, phase.name)
            grads = self.plan.method.gradient(objective, pick(params, names), ctx)
            return grads, objective.terms, objective.buffers

        params = {n: p.detach() for n, p in work.params.items()}
        grads, terms, buffers = self._over(one)((dims, 0, 0, 0, 0), dyn, params, work.buffers, x, y)
        for name, new in buffers.items():
            work.buffers[name].copy_(new.detach())
        return {n: g.detach() for n, g in grads.items()}, {n: t.detach() for n, t in terms.items()}

    def _apply(self, work: _Work, pending: list[tuple[Phase, Tree]], active: Tensor | None) -> None:
        for phase, grads in pending:
            params = {n: work.params[n].detach() for n in grads}
            self._optimizers[phase.name].update(
                params, grads, work.state[phase.name], work.rates[phase.name], active
            )

    # -- what runs for one client (under vmap when mapped) -------------------------------------

    def _terms(
        self, phase: Phase, dyn: dict[str, Any], tensors: Tree | None, x: Tensor, y: Tensor
    ) -> Tree:
        """The loss terms of a phase for one client's batch."""
        plan = self.plan
        net = Net(plan.model, tensors)
        terms: Tree = {}
        with self._drawing(dyn, phase), self._computing():
            out = net.output(x, plan.taps)
            if plan.method.has("loss"):
                terms |= plan.method.loss(out, y, self._ctx(dyn, phase.name), net)
            if self._wanted(phase, "task") and "task" not in terms:
                terms["task"] = task.loss(plan.facts.task, out.logits, y)
        return {n: t for n, t in terms.items() if self._wanted(phase, n)}

    def _wanted(self, phase: Phase, term: str) -> bool:
        return term in phase.terms or ("*" in phase.terms and term not in self.plan.named_terms)

    def _start(self, dyn: dict[str, Any], tensors: Tree, view: dict[str, Tensor]) -> Tree:
        moment = {n: torch.zeros_like(dyn["steps"]) for n in ("step", "epoch")}
        ctx = self._ctx({**dyn, **moment, "fixed": {}}, "start")
        net = Net(self.plan.model, tensors)
        with torch.no_grad(), self._computing():
            return self.plan.method.start(ctx, net, self._data(view))

    def _batch(self, dyn: dict[str, Any], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.plan.method.batch(x, y, self._ctx(dyn, "batch"))

    def _correct(self, phase: str, dyn: dict[str, Any], grads: Tree, params: Tree) -> Tree:
        return self.plan.method.correct(grads, params, self._ctx(dyn, phase))

    def _report(
        self, dyn: dict[str, Any], tensors: Tree, view: dict[str, Tensor]
    ) -> dict[str, Tree]:
        net = Net(self.plan.model, {n: t.detach() for n, t in tensors.items()})
        with torch.no_grad(), self._computing():
            report: Report = self.plan.method.report(
                self._ctx(dyn, "report"), net, self._data(view)
            )
        up: Tree = {}
        for kind in ("mean", "sum", "individual"):
            own = getattr(report, kind)
            up |= own
            self.kinds |= dict.fromkeys(own, kind)
        return {"up": up, "keep": dict(report.keep)}

    def _ctx(self, dyn: dict[str, Any], phase: str) -> Ctx:
        return Ctx(
            **{n: v for n, v in dyn.items() if n != "stage"},
            shared=self._shared,
            stage=self._stage,
            phase=phase,
            facts=self.plan.facts,
            protocol=self.plan.protocol,
        )

    def _data(self, view: dict[str, Tensor]) -> View:
        return View(self.pool, view["index"], view["mask"], self.plan.pipeline, self.plan.dtype)

    @contextlib.contextmanager
    def _drawing(self, dyn: dict[str, Any], phase: Phase) -> Iterator[None]:
        """Dropout and its kin draw from the step's key, the same in every pass of a phase."""
        if not self.plan.random and not self.plan.unkeyed:
            yield
            return
        key = keys.fold_in(keys.fold_in(dyn["key"], "network"), phase.name)
        with contextlib.ExitStack() as stack:
            if self.plan.unkeyed:  # in the loop engine alone: such a model is never stacked
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(int(key) & _SEEDS)
            stack.enter_context(keyed(key))
            yield

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Stacked clients' layers in their fast form, and bfloat16 where it was asked for."""
        with contextlib.ExitStack() as stack:
            if self.mapped:
                stack.enter_context(fast())
            if self.plan.autocast:
                stack.enter_context(torch.autocast(self.plan.device.type, dtype=torch.bfloat16))
            yield

    # -- laying out tensors --------------------------------------------------------------------

    def _over(self, f: Call) -> Call:
        """The function itself, or the function mapped over clients: g(in_dims, *arguments)."""
        if not self.mapped:
            return lambda dims, *args: f(*args)
        return lambda dims, *args: torch.vmap(f, in_dims=dims)(*args)

    def _gather(self, jobs: Sequence[Job]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What jobs bring, as tensors, with the axis that each is mapped over (None: shared)."""
        plan = self.plan
        self._stage = jobs[0].stage.name
        received = [tensors_of(j.payload, plan.dtype, plan.device) for j in jobs]
        for name in jobs[0].payload.numbers:
            if len({j.payload.numbers[name] for j in jobs}) == 1:
                for r in received[1:]:
                    r[name] = received[0][name]
        trees = {
            "received": received,
            "kept": [{n: t for n, t in j.kept.items() if _of_method(n)} for j in jobs],
            "initial": [{**j.model, **under("model", j.kept)} for j in jobs],
        }
        dyn: dict[str, Any] = {}
        dims: dict[str, Any] = {}
        for name, each in trees.items():
            dyn[name], dims[name] = self._tree(each)
        for name, numbers in (
            ("steps", [j.steps for j in jobs]),
            ("samples", [j.samples for j in jobs]),
            ("key", [j.key for j in jobs]),
        ):
            dyn[name], dims[name] = self._host(numbers, torch.int64), 0
        dyn["round"] = torch.tensor(jobs[0].round, device=plan.device)
        dyn["lr"] = torch.tensor(jobs[0].lr, dtype=plan.dtype, device=plan.device)
        dyn["fixed"] = {}
        dims |= {"round": None, "lr": None, "fixed": {}}
        return dyn, {"dyn": dims}

    def _tree(self, trees: Sequence[Tree]) -> tuple[Tree, dict[str, int | None]]:
        """Trees of the jobs as one; what is the same object for everybody stays one tensor."""
        found: Tree = {}
        axes: dict[str, int | None] = {}
        for name, first in trees[0].items():
            same = not self.mapped or all(t[name] is first for t in trees)
            axes[name] = None if same else 0
            found[name] = (
                first.to(self.plan.device) if same else self._stacked([t[name] for t in trees])
            )
        return found, axes

    def _starting_tensors(self, jobs: Sequence[Job]) -> Tree:
        """The tensors that the trip trains: the model's own, or a fresh stack of them."""
        tensors: Tree = {}
        own = self.plan.tensors
        tuning = jobs[0].stage.program == "tune" and jobs[0].round > 0
        for name in own:
            parts = [j.kept.get(f"model/{name}", j.model[name]) for j in jobs]
            if tuning:
                parts = [j.kept.get(f"tuned/{name}", p) for j, p in zip(jobs, parts)]
            if self.mapped:
                tensors[name] = self._stacked(parts).clone()
            else:
                own[name].requires_grad_(False)
                own[name].copy_(parts[0])
                tensors[name] = own[name]
        return tensors

    def _stacked(self, parts: Sequence[Tensor]) -> Tensor:
        parts = [p.to(self.plan.device) for p in parts]
        if not self.mapped:
            return parts[0]
        if all(p is parts[0] for p in parts):
            return parts[0].expand(len(parts), *parts[0].shape)
        return torch.stack(list(parts))

    def _host(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        """Numbers of the jobs on the device: [K], or the one number."""
        values = torch.tensor(numbers, dtype=dtype, device=self.plan.device)
        return values if self.mapped else values[0]

    def _view(self, jobs: Sequence[Job]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Each job's samples in order, padded to the longest where jobs are mapped over."""
        longest = max(j.samples for j in jobs)
        at = torch.arange(longest, device=self.plan.device)
        rows = [(at.clamp_max(j.samples - 1) + self.pool.first[j.place]) for j in jobs]
        masks = [at < j.samples for j in jobs]
        if not self.mapped:
            return {"index": rows[0], "mask": masks[0]}, {}
        return {"index": torch.stack(rows), "mask": torch.stack(masks)}, {"index": 0, "mask": 0}

    def _moment(self, work: _Work, step: Tensor | None = None) -> dict[str, Tensor]:
        step = work.t.clone() if step is None else step
        return {
            "step": step,
            "epoch": torch.div(step, work.length, rounding_mode="floor"),
            "key": keys.fold_in(work.dyn["key"], step),
        }

    def _moment_dims(self) -> dict[str, int | None]:
        return {"step": None, "epoch": 0, "key": 0}

    def _names(self, phase: Phase) -> tuple[str, ...]:
        return tuple(n for group in phase.groups for n in self._trained.get(group, ()))

    def _modes(self, training: tuple[str, ...], force: bool = False) -> None:
        """Put the modules of these groups in train mode and all others in eval mode."""
        wanted = "\0".join(training)
        if wanted == self._modes_set and not force:
            return
        for path, module in self.plan.model.named_modules():
            module.training = self.plan.modes[path] in training
        self._modes_set = wanted

    def _count(self, work: _Work, losses: Mapping[str, Tensor], active: Tensor | None) -> None:
        for name, value in losses.items():
            if active is not None:
                value = torch.where(active, value, 0.0)
            if name not in work.losses:
                whole = work.whole or work
                shape = (whole.rows,) if self.mapped else ()
                whole.losses[name] = value.new_zeros(shape, dtype=self.plan.dtype)
                work.losses[name] = (
                    whole.losses[name][: work.rows] if self.mapped else whole.losses[name]
                )
            work.losses[name].add_(value)

    def _out(self, tensor: Tensor) -> Tensor:
        """A result with its client axis (the loop's working tensors are used again: copy them)."""
        return tensor.detach() if self.mapped else tensor.detach().clone()[None]

    def _rows(self, tree: Tree, count: int) -> list[Tree]:
        if not self.mapped:
            return [{n: t.detach().clone() for n, t in tree.items()}]
        return [{n: t.detach()[k] for n, t in tree.items()} for k in range(count)]


class _Objective:
    """A phase's loss as a pure function of the tensors it trains, with its gradient.

    Buffers move in the first gradient alone: a second pass (SAM) must not move them again.
    """

    def __init__(
        self,
        trip: Trip,
        phase: Phase,
        dyn: dict[str, Any],
        rest: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
    ) -> None:
        self._evaluate: Callable[[Tree], Tree] = lambda t: trip._terms(phase, dyn, t, x, y)
        self._rest = rest
        self.buffers = buffers
        self._before = buffers
        self.terms: Tree = {}

    def _loss(self, params: Tree) -> tuple[Tensor, tuple[Tree, Tree]]:
        buffers = {n: b.clone() for n, b in self._before.items()}
        terms = self._evaluate({**self._rest, **params, **buffers})
        return torch.stack(list(terms.values())).sum(), (terms, buffers)

    def __call__(self, params: Tree) -> Tensor:
        """The loss at these tensors."""
        return self._loss(params)[0]

    def grad(self, params: Tree) -> Tree:
        """The gradient at these tensors."""
        grads: Tree
        grads, (terms, buffers) = torch.func.grad(self._loss, has_aux=True)(params)
        if not self.terms:
            self.terms, self.buffers = terms, buffers
        return grads


def _of_method(name: str) -> bool:
    return name.partition("/")[0] not in ("model", "optimizer", "tuned")


def _broadcast(active: Tensor | None, like: Tensor) -> Tensor:
    assert active is not None
    return active.reshape(-1, *(1,) * (like.dim() - 1))
