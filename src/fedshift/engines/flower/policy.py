"""What a site lets go: every tensor that would leave has a kind, and a site may refuse kinds.

Kinds are what methods declare (`Method.content`). What they do not name counts as parameters, but
for buffers of the model (running statistics) and single numbers, which are statistics, like the
numbers of samples, losses and scores that go with every answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from fedshift.engines.flower.codec import Rejected
from fedshift.plan import Plan
from fedshift.tree import Tree


class Refused(Rejected):
    """A site's policy does not let something go."""


def kind_of_model(plan: Plan, name: str) -> str:
    """What a tensor of the model is."""
    declared = [k for p in plan.method.parts for s, k in p.content.items() if name.startswith(s)]
    buffer = name not in dict(plan.model.named_parameters())
    return (declared or ["statistics" if buffer else "parameters"])[0]


def kind_of_upload(plan: Plan, name: str, tensor: Tensor) -> str:
    """What a method's upload "METHOD/…" is."""
    kind = plan.method.content(name)
    return "statistics" if kind == "parameters" and tensor.numel() == 1 else kind


def check_model(plan: Plan, names: Iterable[str], allow: Sequence[str] | None) -> None:
    """Refuse a training in which tensors of the model would leave that must not."""
    for name in names:
        check(allow, kind_of_model(plan, name), f"'{name}' of the model")


def check_uploads(plan: Plan, extras: Tree, allow: Sequence[str] | None) -> None:
    """Refuse to send what a method reports, where it must not leave."""
    for name, tensor in extras.items():
        check(allow, kind_of_upload(plan, name, tensor), f"'{name}'")


def check(allow: Sequence[str] | None, kind: str, what: str) -> None:
    """Refuse one thing of a kind.

    >>> check(["parameters"], "averaged data", "'fedbr/means'")
    Traceback (most recent call last):
    ...
    fedshift.engines.flower.policy.Refused: the site's policy allows parameters, but 'fedbr/means' \
would leave as averaged data
    """
    if allow is not None and kind not in allow:
        words = ", ".join(allow) or "nothing"
        raise Refused(f"the site's policy allows {words}, but {what} would leave as {kind}")
