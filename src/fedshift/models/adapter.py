"""Makes any module fit the contract: its head is taken out and called by name.

Nothing is traced or copied line by line: the module runs as it is, with an identity in the place of
its head, so that what comes out is what would have reached the head.
"""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor, nn

from fedshift.errors import BadModel
from fedshift.models.contract import check, hint, probe, submodule


class Adapted(nn.Module):
    """A module with its head taken out: `body` ends where the head began.

    `stages` are paths in this module, so they begin with "body."; made by `adapt`.
    """

    def __init__(self, body: nn.Module, stages: tuple[str, ...], head: str) -> None:
        super().__init__()
        self.stages = tuple(f"body.{stage}" for stage in stages)
        # files of pretrained weights have the names of the module as it was
        self.published = ((rf"^{re.escape(head)}\.", "head."), (r"^(?!head\.)", "body."))
        self.head_path = head
        self.head = body.get_submodule(head)
        self.body = body
        _put(body, head, nn.Identity())

    def features(self, x: Tensor) -> Tensor:
        """What reaches the head."""
        z: Tensor = self.body(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def original(self) -> nn.Module:
        """A copy of the module as it was, with this one's weights and the head in its place."""
        whole = copy.deepcopy(self)
        _put(whole.body, self.head_path, whole.head)
        return whole.body


def adapt(
    module: nn.Module,
    stages: tuple[str, ...] = (),
    head: str = "",
    shape: tuple[int, ...] | None = None,
    classes: int | None = None,
) -> Adapted:
    """Make a module fit the contract of a model here.

    Args:
        module: any classifier; a copy is taken, the module itself is not changed.
        stages: paths of submodules in the order they run ("conv1", "layer1.0"); methods that insert
            layers insert them behind these.
        head: path of the last layer, whose output is the logits.
        shape: of one sample; if given (with classes), the result is verified at once.
        classes: how many outputs the head must have.

    Raises:
        BadModel: a path that does not exist (the nearest are named), or, where a shape is given, a
            module that does more after its head than the head does.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> model = adapt(net, stages=("0",), head="2", shape=(4,), classes=3)
    >>> model.features(torch.zeros(5, 4)).shape, model.stages
    (torch.Size([5, 8]), ('body.0',))
    """
    where = f"model '{type(module).__name__}'"
    if isinstance(stages, str):
        raise BadModel(f"{where}: stages is the text {stages!r}: give a tuple of paths")
    if not head:
        raise BadModel(f"{where} needs the path of its head: {_likely_head(module)}")
    submodule(module, head, "head", where)
    for stage in stages:
        submodule(module, stage, "stage", where)
        if f"{head}.".startswith(f"{stage}.") or stage.startswith(f"{head}."):
            raise BadModel(
                f"{where}: stage '{stage}' overlaps the head '{head}': name stages that end "
                "before the head begins"
            )
    model = Adapted(copy.deepcopy(module), tuple(stages), head)
    if shape is not None and classes is not None:
        verify(model, shape, classes)
    return model


def verify(
    model: Adapted,
    shape: tuple[int, ...],
    classes: int,
    name: str = "",
    task: str = "classification",
) -> int:
    """Check the contract, and that the adapted model computes what the module computed.

    Returns:
        the width of the features.

    >>> verify(adapt(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), head="1"), (1, 2, 2), 2)
    4
    """
    name = name or type(model.body).__name__
    _verify_same(model, probe(model, shape), f"model '{name}'")
    return check(model, shape, classes, name, task)


def _verify_same(model: Adapted, x: Tensor, where: str) -> None:
    """head(body(x)) must be original(x); a module that fails by itself is left to `check`."""
    ours, theirs = copy.deepcopy(model).eval(), model.original().eval()
    with torch.no_grad():
        try:
            expected = theirs(x)
            z = ours.features(x)
        except Exception:
            return
        try:
            got = ours.head(z)
        except Exception:
            got = None
    same = isinstance(got, Tensor) and isinstance(expected, Tensor) and got.shape == expected.shape
    if not same or not torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
        raise BadModel(
            f"{where}: head '{model.head_path}' applied to what reaches it is not what the model "
            "returns: nothing may follow the head (take a softmax or reshape out, or name a later "
            "module as the head)"
        )


def _likely_head(module: nn.Module) -> str:
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and name]
    if linear:
        return f'is it head="{linear[-1]}"?'
    return hint("", [name for name, _ in module.named_modules()])


def _put(module: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, leaf = path.rpartition(".")
    setattr(module.get_submodule(parent), leaf, part)
