"""What every model is here (ordered stages, features, a head), and the check that it is so.

`Staged` is the base of the networks in this package. A model need not inherit from it: any module
with `stages`, `features` and `head` will do, and `adapter.adapt` makes one out of any other module.
"""

from __future__ import annotations

import copy
import difflib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.errors import BadModel


class Staged(nn.Module):
    """A model made of stages that run one after another, and a head.

    Subclasses set `stages`, the paths of submodules in the order they run, and `head`. Methods
    insert layers after stages, so whatever belongs together (convolution, norm, activation, pool)
    is one stage.

    For files of pretrained weights (`models.initial`): `published` are patterns of the names
    that others have given these tensors, each with what replaces it; `left_out` are patterns of
    tensors in such files that have no place here; `fresh` are the submodules that a file may lack.

    >>> class Tiny(Staged):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.stages = ("one",)
    ...         self.one = block(linear=nn.Linear(4, 3), relu=nn.ReLU())
    ...         self.head = nn.Linear(3, 2)
    >>> Tiny()(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    stages: tuple[str, ...] = ()
    published: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ("head",)
    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """The input of the head, [B, D]."""
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.join(x)

    def join(self, x: Tensor) -> Tensor:
        """From the last stage's output to [B, D]; flattens, unless a subclass pools."""
        return torch.flatten(x, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.features(x))
        return logits


def block(**parts: nn.Module) -> nn.Sequential:
    """A stage from named parts, so that its tensors are called "conv1.norm.weight", not "conv1.1".

    >>> [name for name, _ in block(conv=nn.Conv2d(1, 2, 3), relu=nn.ReLU()).named_parameters()]
    ['conv.weight', 'conv.bias']
    """
    return nn.Sequential(OrderedDict(parts))


def image(shape: tuple[int, ...], network: str, least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image shape that a network can take.

    >>> image((1, 28, 28), "lenet", least=16)
    (1, 28, 28)
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise BadModel(
            f"network '{network}' needs images of at least {least}x{least} pixels, but the samples "
            f"have shape {tuple(shape)}: resize them, or take 'mlp', which fits any shape"
        )
    return shape[0], shape[1], shape[2]


def hint(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, or all of them.

    >>> hint("con1", ["conv1", "conv2", "fc"])
    'did you mean conv1 or conv2?'
    """
    known = [k for k in known if k]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"known are {shown}" if known else "there is none to choose from"


def submodule(module: nn.Module, path: str, what: str, where: str) -> nn.Module:
    """The submodule at a path, or an error that names the nearest paths.

    >>> submodule(nn.Sequential(nn.ReLU()), "0", "stage", "model 'tiny'")
    ReLU()
    """
    found = dict(module.named_modules(remove_duplicate=False))
    if not path or path not in found:
        raise BadModel(f"{where} has no {what} '{path}': {hint(path, found)}")
    part: nn.Module = found[path]
    return part


def check(
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    name: str = "",
    task: str = "classification",
) -> int:
    """Try the contract on a copy of the model with two made-up samples, in eval mode.

    A classifier's features are [B, D] and its logits [B, classes]; a segmenter's features are maps
    [B, D, height, width], and its logits [B, classes, H, W] are one for each pixel of the input.

    Args:
        model: left as it is, buffers and modes included.
        shape: of one sample.
        classes: how many logits the head must give.
        name: how messages call the model; its class name by default.
        task: "classification" or "segmentation".

    Returns:
        the width D of the features.

    Raises:
        BadModel: naming the part that is missing or has the wrong shape, and the remedy.

    >>> class Net(Staged):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.head = nn.Linear(16, 10)
    >>> check(Net(), (1, 4, 4), 10)
    16
    """
    where = f"model '{name or type(model).__name__}'"
    check_parts(model, where)
    model = copy.deepcopy(model).eval()
    x = probe(model, shape)
    with torch.no_grad():
        z = attempt(model.features, x, f"{where}: features(x)")
        pixels = tuple(shape[1:]) if task == "segmentation" else ()
        if not isinstance(z, Tensor) or z.dim() != 2 + len(pixels) or len(z) != len(x):
            raise BadModel(
                f"{where}: features(x) gives {_shape(z)} for {len(x)} samples of shape "
                f"{tuple(shape)}: {_WANTED[task]}"
            )
        logits = attempt(model.head, z, f"{where}: head(z)")
        if not isinstance(logits, Tensor) or logits.shape != (len(x), classes, *pixels):
            of = f" and {pixels[0]}x{pixels[1]} pixels to label" if pixels else ""
            raise BadModel(
                f"{where}: the head gives {_shape(logits)} for {len(x)} samples, but the data have "
                f"{classes} classes{of}: build the model with {classes} outputs"
                f"{' for each pixel' if pixels else ''}"
            )
        _check_whole(model, x, logits, where)
    return z.shape[1]


_WANTED = {
    "classification": "it must give [B, D], so flatten or pool before the head (a network that "
    "labels pixels, such as unet, is for segmentation)",
    "segmentation": "to label pixels it must give maps [B, D, height, width]; take unet, or a "
    "network of your own that ends in a convolution",
}


def check_parts(model: nn.Module, where: str) -> None:
    """Refuse a model without stages, features or head, before anything runs.

    >>> check_parts(nn.Linear(2, 2), "model 'Linear'")
    Traceback (most recent call last):
    fedshift.errors.BadModel: model 'Linear' has no features(x): name its stages and head \
(--stages conv1,conv2 --head fc; stages=("conv1", "conv2"), head="fc" in Python), or inherit \
from fedshift.models.Staged
    """
    for part in ("features(x)", "head"):
        if not callable(getattr(model, part.removesuffix("(x)"), None)):
            raise BadModel(
                f"{where} has no {part}: name its stages and head (--stages conv1,conv2 --head fc; "
                'stages=("conv1", "conv2"), head="fc" in Python), or inherit from '
                "fedshift.models.Staged"
            )
    stages = getattr(model, "stages", None)
    if isinstance(stages, str) or not all(isinstance(s, str) for s in stages or ()):
        raise BadModel(f"{where} has stages {stages!r}: give a tuple of the paths of submodules")
    if stages is None:
        raise BadModel(f"{where} has no stages: give a tuple of the paths of submodules, in order")
    for stage in stages:
        submodule(model, stage, "stage", where)
        if list(stages).count(stage) > 1:
            raise BadModel(f"{where} has stage '{stage}' twice: name it once")


def probe(model: nn.Module, shape: tuple[int, ...], batch: int = 2) -> Tensor:
    """Made-up samples of the model's type and device, always the same.

    >>> probe(nn.Linear(4, 2), (4,)).shape
    torch.Size([2, 4])
    """
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    key = keys.as_tensor(keys.fold(0, "probe"), like.device)
    return keys.normal(key, (batch, *shape), like.dtype)


def _check_whole(model: nn.Module, x: Tensor, logits: Tensor, where: str) -> None:
    """forward must be head(features(x)): methods call the parts, evaluation calls the whole."""
    whole = attempt(model, x, f"{where}: forward(x)")
    if not isinstance(whole, Tensor) or whole.shape != logits.shape or not _close(whole, logits):
        raise BadModel(
            f"{where}: forward(x) differs from head(features(x)): let forward return exactly that "
            "(no softmax or other step after the head)"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max().clamp_min(1.0)))


def attempt(part: Any, x: Tensor, what: str) -> Any:
    """Call a part of a model; what it raises becomes one line."""
    try:
        return part(x)
    except Exception as error:
        raise BadModel(
            f"{what} fails on an input of shape {tuple(x.shape)}: {first_line(error)}; "
            "fit the model to the shape of the samples"
        ) from error


def first_line(error: BaseException) -> str:
    """The kind and first line of another library's error, for a message of one line.

    >>> first_line(ValueError("bad size\\nmore"))
    'ValueError: bad size'
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _shape(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
