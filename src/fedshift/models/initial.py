"""Weights from a file, for a model that does not begin at random; every name and shape is compared.

Files are safetensors, which hold numbers alone. Other formats may run code when they are opened,
and are not read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from fedshift.errors import BadModel
from fedshift.models.contract import first_line
from fedshift.tree import Tree

_SHOWN = 4  # names in a message


def fill(model: nn.Module, path: str) -> None:
    """Give a model the weights of a file, in place.

    Names are the model's own, or those of published files (`Staged.published` says how they are
    called here; torchvision's for its architectures). What the model has new (`Staged.fresh`: the
    head, as a rule) may be missing or of another shape, and then stays as it was drawn.

    Raises:
        BadModel: naming what is missing, too much, of another shape or not finite.
    """
    where = f"pretrained weights {path}"
    found = _renamed(model, _read(Path(path), where))
    wanted = model.state_dict()
    fresh = tuple(f"{part}." for part in getattr(model, "fresh", ("head",)))
    fits = {n: t for n, t in found.items() if n in wanted and t.shape == wanted[n].shape}
    missing = [n for n in wanted if n not in found and not _optional(n, fresh)]
    extra = [n for n in found if n not in wanted and not n.startswith(fresh)]
    shapes = [
        f"{n} ({_size(found[n])} in the file, {_size(wanted[n])} here)"
        for n in found
        if n in wanted and n not in fits and not n.startswith(fresh)
    ]
    for what, names in (
        ("lack what the model has", missing),
        ("hold what the model has not", extra),
        ("have other shapes", shapes),
    ):
        if names:
            raise BadModel(
                f"{where} {what}: {_some(names)}; give the file of this very architecture"
            )
    if bad := [n for n, t in fits.items() if t.is_floating_point() and not t.isfinite().all()]:
        raise BadModel(f"{where} hold NaN or infinite values in {_some(bad)}: take another file")
    with torch.no_grad():
        for name, tensor in fits.items():
            wanted[name].copy_(tensor)


def digest(path: str) -> str:
    """What tells a file of weights from any other, so that a run goes on with the same one."""
    file = Path(path)
    _check_file(file, f"pretrained weights {path}")
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _check_file(path: Path, where: str) -> None:
    if not path.is_file():
        raise BadModel(f"{where} do not exist: check the path")
    if path.suffix != ".safetensors":
        raise BadModel(
            f"{where} are no .safetensors file, and other formats can run code when opened: "
            "convert them where you trust them, with safetensors.torch.save_file(state_dict, "
            f"'{path.stem}.safetensors')"
        )


def _read(path: Path, where: str) -> Tree:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _check_file(path, where)
    try:
        tensors: Tree = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise BadModel(f"{where} cannot be read ({first_line(error)}): get the file anew") from None
    return tensors


def _renamed(model: nn.Module, tensors: Tree) -> Tree:
    """The tensors under this model's names, without those that it has no place for."""
    own = model.state_dict()
    patterns = getattr(model, "published", ())
    left_out = getattr(model, "left_out", ())
    found = {}
    for name, tensor in tensors.items():
        new = name
        if name not in own:
            for pattern, replacement in patterns:
                new = re.sub(pattern, replacement, new)
        if new in own or not any(re.search(pattern, name) for pattern in left_out):
            found[new] = tensor
    return found


def _optional(name: str, fresh: tuple[str, ...]) -> bool:
    """What a file may lack: new parts, and the counts of batches, which older files have not."""
    return name.startswith(fresh) or name.endswith(".num_batches_tracked")


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
