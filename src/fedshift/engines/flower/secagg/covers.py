"""Methods that need more than sums of uploads are refused before a run begins, and told why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from fedshift.aggregate import Server, absorb
from fedshift.engines.flower.codec import Like
from fedshift.engines.flower.declared import Declared, Expected
from fedshift.engines.flower.secagg.layout import SUMS, Layout, layout
from fedshift.engines.flower.secagg.summed import HIDDEN, Hidden, summed
from fedshift.errors import BadRun, CannotCombine
from fedshift.method import overrides
from fedshift.plan import Plan
from fedshift.tree import Tree, under
from fedshift.trip import Job, Result

_RULES = {
    "weights": "weighs clients by a rule of its own",
    "combine": "combines tensors by a rule of its own",
    "element_weights": "weighs single elements by client",
}


def check(plan: Plan, declared: Declared, server: Server, jobs: Sequence[Job]) -> None:
    """Refuse what a sum cannot serve; `jobs` has one of each stage, in order."""
    for part in plan.method.parts:
        for hook, deed in _RULES.items():
            if overrides(part, hook):
                raise CannotCombine(f"'{part.name}' {deed}, and {SUMS}")
    for k, job in enumerate(jobs):
        try:
            found = declared.expected(job, [])
        except BadRun as error:
            if k and error.__cause__ is not None:
                continue  # it needs what earlier stages bring: refused, if at all, when it is there
            raise
        whole = layout(plan, found.tensors, found.kinds)
        _rehearse(plan, server, found, whole, job)


def _rehearse(plan: Plan, server: Server, found: Expected, whole: Layout, job: Job) -> None:
    """Let the server's part meet made-up uploads, of which it has each one or the sum alone.

    Zeros are no uploads that a method must understand: what fails with them in any case says
    nothing.
    """
    clients = list(plan.facts.clients[:2])
    dense = _rows(found.tensors, server, len(clients), plan.device)
    hidden = {
        n: summed(t.sum(dim=0), [1] * len(clients), t.dtype) if n in whole else t
        for n, t in dense.items()
    }
    alike = dataclasses.replace(plan, protocol=plan.protocol.replace(weights="uniform"))

    def outcome(rows: Mapping[str, torch.Tensor]) -> Exception | None:
        up = under("model", dict(rows)), under("extra", dict(rows))
        result = Result(clients, *up, dict(found.kinds), [], {})
        try:
            after = absorb(alike, server, result, dict.fromkeys(clients, 1), 0, 0, job.stage.name)
        except Exception as error:
            return error
        held = [t for s in after.methods.values() for t in s.tensors.values()]
        if any(t.is_meta for t in (*after.model.values(), *held)):
            return Hidden(HIDDEN)
        return None

    fails = outcome(hidden)
    if fails is not None and (isinstance(fails, Hidden) or outcome(dense) is None):
        raise CannotCombine(f"'{plan.method.name}': {HIDDEN}")


def _rows(likes: Mapping[str, Like], server: Server, count: int, device: torch.device) -> Tree:
    """Uploads as if nobody had learnt anything: the server's model, and zeros beside it."""
    found: Tree = {}
    for name, like in likes.items():
        group, _, rest = name.partition("/")
        one = torch.zeros(like.shape, dtype=like.dtype, device=device)
        if group == "model" and rest in server.model:
            one = server.model[rest].to(like.dtype)
        found[name] = one.expand(count, *like.shape)
    return found
