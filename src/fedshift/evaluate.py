"""Scores of the global model and of each client's own, per client; and of clients never seen.

A client's own model is the global one with what the client keeps laid over it. Test and validation
data of all clients pass through the global model in one go of large batches.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedshift import task
from fedshift.federation import Client, Samples
from fedshift.net import Net, eval_mode, owners
from fedshift.plan import Plan
from fedshift.tree import Tree, under

SPLITS = ("val", "test")


@dataclasses.dataclass
class Score:
    """One client's scores, as fractions; None where it has no such data or no such model."""

    client: str
    role: str = "seen"
    test: float | None = None
    val: float | None = None
    personal_test: float | None = None
    personal_val: float | None = None

    def of(self, view: str, split: str) -> float | None:
        """The score of a view ("global" or "personal") on a split ("val" or "test")."""
        name = split if view == "global" else f"personal_{split}"
        value: float | None = getattr(self, name)
        return value


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean, worst and spread (standard deviation) over clients."""

    mean: float | None
    worst: float | None
    spread: float | None


def summary(values: Sequence[float | None]) -> Summary:
    """Summarise scores, leaving out those that are missing.

    >>> summary([0.5, 0.7, None])
    Summary(mean=0.6, worst=0.5, spread=0.1)
    """
    known = [v for v in values if v is not None]
    if not known:
        return Summary(None, None, None)
    spread = statistics.pstdev(known)
    return Summary(round(statistics.fmean(known), 12), min(known), round(spread, 12))


def personal_tensors(model: Tree, kept: Tree) -> Tree:
    """A client's own model: the global one, what it keeps, and what it tuned."""
    return {**model, **under("model", kept), **under("tuned", kept)}


def evaluate(
    plan: Plan, model: Tree, kept: Mapping[str, Tree], clients: Sequence[Client]
) -> list[Score]:
    """Scores of the global model on every client, and of its own where it keeps something."""
    scores = [Score(c.name) for c in clients]
    # where each client holds a part of the model back, the rest alone is no model
    whole = plan.method.view == "global" or not set(plan.names("kept")) & plan.used
    # where personal scores are of trained models, global ones are of what came before training
    laid_over = plan.method.scores_trained and bool(plan.names("kept"))
    for split in SPLITS if whole else ():
        parts: list[Samples] = [getattr(c, split) for c in clients]
        if laid_over:
            local = [{**model, **under("model", kept.get(c.name, {}))} for c in clients]
            values = [_each(plan, t, [p], "global")[0] for t, p in zip(local, parts)]
        else:
            values = _each(plan, model, parts, "global")
        for score, value in zip(scores, values):
            setattr(score, split, value)
    for score, client in zip(scores, clients):
        own = kept.get(client.name, {})
        if not (under("model", own) or under("tuned", own)):
            if plan.method.view == "global":
                continue
            if whole:
                score.personal_test, score.personal_val = score.test, score.val
                continue
        # who has not taken part yet holds the initial values of what others keep
        tensors = personal_tensors(model, own)
        for split in SPLITS:
            value = _each(plan, tensors, [getattr(client, split)], "personal")[0]
            setattr(score, f"personal_{split}", value)
    return scores


def evaluate_unseen(
    plan: Plan, model: Tree, kept: Mapping[str, Tree], clients: Sequence[Client]
) -> list[Score]:
    """Scores on clients that never took part, with what `for_unseen` gives them.

    Where clients keep more than norm layers there is no model for anybody else, and no score.
    """
    if not serves_unseen(plan):
        return [Score(c.name, role="unseen") for c in clients]
    scores = []
    for client in clients:
        inputs = client.train.x if len(client.train) else client.test.x
        tensors = for_unseen(plan, model, list(kept.values()), inputs)
        score = Score(client.name, role="unseen")
        for split in SPLITS:
            setattr(score, split, _each(plan, tensors, [getattr(client, split)], "global")[0])
        scores.append(score)
    return scores


def serves_unseen(plan: Plan) -> bool:
    """Whether there is a model for a site that never took part.

    Nobody else has what clients keep, except for norm layers, of which the mean will do.
    """
    return set(plan.names("kept")) & plan.used <= set(norm_names(plan))


def logits(plan: Plan, tensors: Tree, x: Tensor, view: str = "global") -> Tensor:
    """The method's prediction for raw samples, batch by batch, in eval mode."""
    batches = _batches([x], plan.protocol.eval_batch)
    return _made_of_logits(plan, tensors, batches, view, lambda out, at: out)


def _made_of_logits(
    plan: Plan,
    tensors: Tree,
    batches: Iterable[Tensor],
    view: str,
    make: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """What is made of the predictions, batch by batch: `make(logits, position of the first)`."""
    found: list[Tensor] = []
    net = Net(plan.model, tensors)
    at = 0
    with torch.no_grad(), eval_mode(plan.model):
        for batch in batches:
            ready = plan.pipeline(batch.to(plan.device), None, plan.dtype)
            found.append(make(plan.method.predict(net, ready, view), at))
            at += len(batch)
    return torch.cat(found)


def _batches(parts: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Batches of samples out of many parts, without a copy of all parts at once.

    >>> [b.tolist() for b in _batches([torch.arange(3), torch.arange(3, 8)], 4)]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    waiting: list[Tensor] = []
    missing = size
    for part in parts:
        at = 0
        while at < len(part):
            piece = part[at : at + missing]
            waiting.append(piece)
            at, missing = at + len(piece), missing - len(piece)
            if missing == 0:
                yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)
                waiting, missing = [], size
    if waiting:
        yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)


def _each(plan: Plan, tensors: Tree, parts: Sequence[Samples], view: str) -> list[float | None]:
    """Mean score of each part under one set of tensors."""
    full = [p for p in parts if len(p)]
    if not full:
        return [None] * len(parts)
    batches = _batches([p.x for p in full], plan.protocol.eval_batch)
    y = full[0].y if len(full) == 1 else torch.cat([p.y for p in full])

    def score(out: Tensor, at: int) -> Tensor:  # the logits of all pixels would be too many to hold
        return task.scores(plan.facts.metric, out, y[at : at + len(out)].to(plan.device))

    right = _made_of_logits(plan, tensors, batches, view, score).cpu()
    found: list[float | None] = []
    at = 0
    for part in parts:
        found.append(float(right[at : at + len(part)].mean()) if len(part) else None)
        at += len(part)
    return found


def for_unseen(plan: Plan, model: Tree, kept: Sequence[Tree], x: Tensor) -> Tree:
    """Tensors for a site that never took part, from its own unlabelled inputs.

    Where clients keep norm layers, it gets the mean of theirs, and its running statistics are
    estimated anew on its inputs; otherwise it gets the global tensors.
    """
    norms = norm_names(plan)
    held = [under("model", k) for k in kept]
    held = [k for k in held if all(n in k for n in norms)]
    if not norms or not held:
        return dict(model)
    tensors = dict(model)
    for name in norms:
        stacked = torch.stack([k[name] for k in held])
        mean = stacked.to(plan.device)
        tensors[name] = mean.mean(dim=0) if mean.is_floating_point() else mean.amax(dim=0)
    return _with_own_statistics(plan, tensors, x)


def norm_names(plan: Plan) -> list[str]:
    """Names of the tensors of norm layers that clients keep."""
    owner = owners(plan.model)
    return [n for n in plan.own if isinstance(owner[n], _NORMS)]


_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.batchnorm._NormBase)


def _with_own_statistics(plan: Plan, tensors: Tree, x: Tensor) -> Tree:
    """The same tensors with batch-norm statistics of the given inputs, where clients keep them.

    Batches are full and count alike; what is left over of several batches is not looked at.
    """
    owner = owners(plan.model)
    own = {id(owner[n]) for n in norm_names(plan) if n.endswith(".running_mean")}
    batch_norms = [
        m for m in plan.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    norms = [m for m in batch_norms if id(m) in own]
    moved = {n: t.clone() for n, t in tensors.items()}
    momenta = [m.momentum for m in norms]
    try:
        plan.model.eval()
        size = min(len(x), plan.protocol.eval_batch)
        for i, at in enumerate(range(0, len(x) - size + 1, max(1, size))):
            for norm in norms:
                norm.train()
                norm.momentum = 1.0 / (i + 1)
            batch = plan.pipeline(x[at : at + size].to(plan.device), None, plan.dtype)
            with torch.no_grad():
                Net(plan.model, moved).features(batch)
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        plan.model.eval()
    return moved
