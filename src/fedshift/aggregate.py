"""The server's side of a round: broadcast, and combine what came back.

The four parts of aggregation (weights, combine, server_step, after) are the method's; this module
calls them in order with FedAvg's rules where a method has none of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedshift import keys, noising, sealed
from fedshift.errors import BadRun
from fedshift.method import State, Uploads
from fedshift.net import Net
from fedshift.plan import Plan
from fedshift.tree import Tree, finite, nbytes, pick
from fedshift.trip import Result


@dataclasses.dataclass(frozen=True)
class Server:
    """What the server holds: the global tensors, and each method's state by its name."""

    model: Tree
    methods: dict[str, State]


def begin(plan: Plan) -> Server:
    """The server before the first round."""
    model = {n: t.detach().clone() for n, t in plan.tensors.items()}
    return Server(model, plan.method.init_server(pick(model, plan.shared), plan.facts))


def begin_client(plan: Plan, model: Tree) -> Tree:
    """What a client keeps before its first round; `model` holds the tensors that `build` gave."""
    own: State = plan.method.init_client(pick(model, plan.shared), plan.facts)
    numbers = {
        n: torch.tensor(v, dtype=torch.int64 if isinstance(v, int) else torch.float64)
        for n, v in own.numbers.items()
    }
    return {**own.tensors, **numbers}


def weighted_mean(stacked: Tensor, weights: Tensor) -> Tensor:
    """The mean over the first axis; counters (whole numbers) take their largest value.

    >>> weighted_mean(torch.tensor([[0.0], [1.0]]), torch.tensor([0.25, 0.75]))
    tensor([0.7500])
    """
    if not stacked.is_floating_point():
        return stacked.amax(dim=0)
    mean: Tensor = torch.tensordot(weights.to(stacked.dtype), stacked, dims=1)
    return mean


def sound(result: Result) -> list[bool]:
    """For each client, whether everything that it sent is finite."""
    rows = torch.ones(len(result.clients), dtype=torch.bool)
    sent = {**result.model, **result.extras}
    plain = all(type(t) is Tensor for t in sent.values())  # and not what stands for rows not here
    if plain and any(t.is_cuda for t in sent.values()) and finite(sent):
        return rows.tolist()  # the usual case, in few launches
    flags = []
    for t in sent.values():
        if t.is_floating_point() and t.numel():
            each = t.reshape(len(t), -1)
            low, high = each.amin(dim=1), each.amax(dim=1)  # NaN is both; aminmax is slow by rows
            flags.append(torch.isfinite(low) & torch.isfinite(high))
    if flags:
        rows = torch.stack(flags).all(dim=0).cpu()
    return [bool(r) for r in rows]


def sound_kept(kept: Sequence[Tree], device: torch.device) -> list[bool]:
    """For each client, whether what it keeps is finite; of methods' own, whether it has no NaN.

    >>> nan, inf = torch.tensor(torch.nan), torch.tensor(torch.inf)
    >>> sound_kept([{}, {"model/w": inf}, {"x/low": inf}, {"x/low": nan}], inf.device)
    [True, False, True, False]
    """
    found = [True] * len(kept)
    named = [
        (k, name.partition("/")[0] in ("model", "optimizer", "tuned"), t.to(device))
        for k, own in enumerate(kept)
        for name, t in own.items()
        if t.is_floating_point() and t.numel()
    ]
    if named:
        tensors = [t for *_, t in named]
        if device.type == "cpu":  # where the norm is many times slower
            norms = [torch.maximum(-low, high) for low, high in map(torch.aminmax, tensors)]
        else:
            norms = list(torch._foreach_norm(tensors, math.inf))  # NaN stays NaN
        largest = torch.stack([n.double() for n in norms]).tolist()  # waits for the device once
        for (k, trained, _), value in zip(named, largest):
            found[k] &= math.isfinite(value) if trained else not math.isnan(value)
    return found


def only(result: Result, keep: Sequence[bool]) -> Result:
    """A result without some of its clients."""
    at = torch.tensor([k for k, good in enumerate(keep) if good])
    if len(at) == len(keep):
        return result

    def choose(tree: Tree) -> Tree:
        return {n: t.index_select(0, at.to(t.device)) for n, t in tree.items()}

    return dataclasses.replace(
        result,
        clients=[result.clients[k] for k in at],
        kept=[result.kept[k] for k in at],
        model=choose(result.model),
        extras=choose(result.extras),
        losses=choose(result.losses),
        seconds=[result.seconds[k] for k in at],
    )


def absorb(
    plan: Plan,
    server: Server,
    result: Result,
    samples: Mapping[str, int],
    round: int,
    key: int,
    stage: str = "train",
) -> Server:
    """The server after a round: the four parts of aggregation, in order."""
    method = plan.method
    counts = torch.tensor(
        [samples[c] for c in result.clients], dtype=plan.dtype, device=plan.device
    )
    equal = torch.ones_like(counts)
    uploads = Uploads(
        clients=tuple(result.clients),
        samples=counts,
        weights=_normalised(counts if plan.protocol.weights == "samples" else equal),
        model=result.model,
        extras=result.extras,
        combined={},
        total=len(plan.facts.clients),
        round=round,
        stage=stage,
    )
    own = method.weights(uploads, server.methods)
    if own is not None:
        uploads = dataclasses.replace(uploads, weights=_normalised(own.to(counts)))
    means = _combine_model(plan, uploads)
    combined = _combine_extras(plan, uploads, result.kinds)
    if not _central(plan):
        uploads = dataclasses.replace(uploads, combined=combined)
        return _stepped(plan, server, means, uploads, key)
    assert plan.privacy is not None
    means, combined = noising.central(
        plan.privacy,
        means,
        combined,
        result.kinds,
        plan.shared,
        len(result.clients),
        keys.as_tensor(key, plan.device),
    )
    model, extras = sealed.seal(result.model), sealed.seal(result.extras)
    uploads = dataclasses.replace(uploads, model=model, extras=extras, combined=combined)
    with sealed.unseen():
        after = _stepped(plan, server, means, uploads, key)
    sealed.check_unseen([*after.model.values(), *_held(after.methods)])
    return after


def _stepped(plan: Plan, server: Server, means: Tree, uploads: Uploads, key: int) -> Server:
    """The server's step and what follows it."""
    method, methods = plan.method, server.methods
    new = {**server.model, **means}
    if uploads.model:
        new, methods = method.server_step(server.model, new, methods)
    new, methods = method.after(new, uploads, methods, Net(plan.model, new), key)
    return Server(new, methods)


def _held(methods: Mapping[str, State]) -> list[Tensor]:
    return [t for state in methods.values() for t in state.tensors.values()]


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum()
    if not bool(torch.isfinite(total)) or float(total) <= 0:
        raise BadRun(
            "the clients' weights sum to "
            f"{float(total):g}: a method's weights must be finite and sum to more than 0"
        )
    return weights / total


def _central(plan: Plan) -> bool:
    """Whether the server adds noise: its method then sees plain means and sums alone."""
    return plan.privacy is not None and not plan.privacy.local


def _combine_model(plan: Plan, uploads: Uploads) -> Tree:
    return {n: _combined(plan, uploads, n, stacked) for n, stacked in uploads.model.items()}


def _combined(plan: Plan, uploads: Uploads, name: str, stacked: Tensor) -> Tensor:
    own = plan.method.combine(name, stacked, uploads.weights)
    if own is not None:
        return own
    each = plan.method.element_weights(name, uploads)
    if each is None:
        return weighted_mean(stacked, uploads.weights)
    return (each.to(stacked.dtype) * stacked).sum(dim=0)


def _combine_extras(plan: Plan, uploads: Uploads, kinds: Mapping[str, str]) -> Tree:
    combined: Tree = {}
    for name, stacked in uploads.extras.items():
        own = None
        if not _central(plan):
            own = plan.method.combine_extra(name, stacked, uploads.weights)
        elif kinds[name] == "individual":
            raise BadRun(
                f"'{name}' is for the server to look at one by one, which noise on means does not "
                "cover: let clients add it (--dp-where local), or take another method"
            )
        if own is not None:
            combined[name] = own
        elif kinds[name] == "mean":
            combined[name] = weighted_mean(stacked, uploads.weights)
        elif kinds[name] == "sum":
            combined[name] = stacked.sum(dim=0)
    return combined


def bytes_down(plan: Plan, server: Server, payload: State) -> int:
    """Bytes that go to one client: shared tensors and payload (a number counts eight)."""
    extra = nbytes(dict(payload.tensors)) + 8 * len(payload.numbers)
    return nbytes(pick(server.model, plan.down)) + extra


def bytes_up(result: Result) -> int:
    """Bytes that come from one client."""
    return (nbytes(result.model) + nbytes(result.extras)) // max(1, len(result.clients))
