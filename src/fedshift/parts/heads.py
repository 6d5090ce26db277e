"""The head of a model: which tensors are its own, and another one in its place."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedshift.errors import BadModel

_PREFIX = "head."


def of_head(name: str) -> bool:
    """Whether a tensor of the model belongs to its head.

    >>> of_head("head.weight"), of_head("headline.weight")
    (True, False)
    """
    return name.startswith(_PREFIX)


def check_head(model: nn.Module, owner: str) -> None:
    """Refuse a model whose head is no module with tensors of its own."""
    head = dict(model.named_children()).get("head")
    own = {n for n, _ in model.named_parameters() if of_head(n)}
    if head is None or len(own) < len(list(head.parameters())) or not own:
        raise BadModel(
            f"'{owner}' treats the head apart from the rest, and the model has no head with "
            "parameters of its own: take a model whose `head` is such a module"
        )


def replace_head(model: nn.Module, owner: str, **parts: nn.Module) -> None:
    """Put parts that run one after another in the place of the head, as "head.NAME".

    >>> model = nn.Sequential(OrderedDict(body=nn.Linear(4, 8), head=nn.Linear(8, 3)))
    >>> replace_head(model, "mine", middle=nn.Linear(8, 5), classifier=nn.Linear(5, 3))
    >>> [name for name, _ in model.named_parameters() if name.endswith("weight")]
    ['body.weight', 'head.middle.weight', 'head.classifier.weight']
    """
    check_head(model, owner)
    model.head = nn.Sequential(OrderedDict(parts))
