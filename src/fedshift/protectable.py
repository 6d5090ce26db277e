"""What privacy cannot cover is refused before a run begins, naming what it is.

What leaves a client must be a change of trained parameters, or floating numbers that its methods
report; where the server adds the noise, its methods must need no more than plain means and sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from fedshift import keys
from fedshift.aggregate import Server, absorb
from fedshift.engines.flower.declared import Declared, Expected
from fedshift.errors import BadRun, BadValue, CannotCombine
from fedshift.method import overrides
from fedshift.plan import Plan
from fedshift.sealed import Looked
from fedshift.tree import under
from fedshift.trip import Job, Result

_RULES = {
    "weights": "weights the clients by a rule of its own",
    "combine": "combines tensors by a rule of its own",
    "element_weights": "weights single elements by client",
}


def check(plan: Plan) -> None:
    """Refuse what can be seen without playing."""
    privacy = plan.privacy
    assert privacy is not None
    if plan.method.pooled:
        raise CannotCombine(
            f"'{plan.method.name}' trains where all data lie, so there are no clients to protect: "
            "leave privacy off"
        )
    if plan.protocol.weights != "uniform":
        raise BadValue(
            f"protocol.weights is '{plan.protocol.weights}', and noise is for equal weights: set "
            "it to uniform (--weights uniform)"
        )
    parameters = dict(plan.model.named_parameters())
    for name in plan.up:
        if name not in plan.shared and (name not in parameters or plan.scopes[name].share == "up"):
            raise BadRun(
                f"'{name}' of the model is uploaded and is no trained, shared parameter, so "
                "privacy cannot cover it: let clients keep it (as fedbn does with norm layers), "
                "or take a model without it"
            )
    for part in plan.method.parts if not privacy.local else ():
        for hook, deed in _RULES.items():
            if overrides(part, hook):
                raise CannotCombine(f"'{part.name}' {deed}, {_CENTRAL}")


def check_uploads(plan: Plan, declared: Declared, server: Server, jobs: Sequence[Job]) -> None:
    """Refuse what shows when methods are rehearsed; `jobs` has one of each stage, in order."""
    assert plan.privacy is not None
    for k, job in enumerate(jobs):
        try:
            found = declared.expected(job, [])
        except BadRun as error:
            if k and error.__cause__ is not None:
                continue  # it needs what earlier stages bring: refused, if at all, when it is there
            raise
        _check_kinds(plan, found)
        if not plan.privacy.local:
            _rehearse_server(plan, server, found, job)


def _check_kinds(plan: Plan, found: Expected) -> None:
    assert plan.privacy is not None
    for name, kind in found.kinds.items() if not plan.privacy.local else ():
        owner = name.partition("/")[0]
        if kind == "individual":
            raise CannotCombine(
                f"'{owner}' uploads '{name}' for the server to look at one by one, {_CENTRAL}"
            )
        like = found.tensors[f"extra/{name}"]
        rows = keys.uniform(keys.as_tensor(1), (3, *like.shape), torch.float64).to(plan.device)
        own = plan.method.combine_extra(name, rows, rows.new_full((3,), 1 / 3))
        plain = rows.mean(dim=0) if kind == "mean" else rows.sum(dim=0)
        if own is not None and (own.shape != plain.shape or not torch.allclose(own, plain)):
            raise CannotCombine(f"'{owner}' combines '{name}' by a rule of its own, {_CENTRAL}")


def _rehearse_server(plan: Plan, server: Server, found: Expected, job: Job) -> None:
    """Let the server's part meet uploads that must not be looked at, before a round is trained."""
    clients = list(plan.facts.clients[:2])
    rows = {
        n: torch.zeros((len(clients), *like.shape), dtype=like.dtype, device=plan.device)
        for n, like in found.tensors.items()
    }
    result = Result(clients, under("model", rows), under("extra", rows), found.kinds, [], {})
    open_ = dataclasses.replace(plan, privacy=None)
    shown, hidden = (_absorbs(p, server, result, job.stage.name) for p in (open_, plan))
    if hidden is not None and (shown is None or isinstance(hidden, Looked)):
        raise CannotCombine(f"'{plan.method.name}': {hidden}")


def _absorbs(plan: Plan, server: Server, result: Result, stage: str) -> Exception | None:
    """Why the server cannot take a result; zeros are no uploads that a method must understand."""
    try:
        absorb(plan, server, result, dict.fromkeys(result.clients, 1), 0, 0, stage)
    except Exception as error:
        return error
    return None


_CENTRAL = (
    "which noise on plain means does not cover: let clients add it (--dp-where local), or take "
    "another method"
)
