"""ProstateMRI: where is the prostate in a slice? Six hospitals' scanners, as in SAML's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedshift import keys
from fedshift.data.in_memory import channels_first, read_npz
from fedshift.data.sets import cutting, once, pixels, place, reading
from fedshift.errors import BadData
from fedshift.federation import Federation, Samples
from fedshift.tree import Tree

SITES = ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL")
_CONTENTS = (
    "a folder for each of "
    + ", ".join(SITES)
    + " with CaseNN.nii.gz and CaseNN_segmentation.nii.gz"
    " (or a file such as BIDMC.npz with x [N, 3, H, W] uint8 and y [N, H, W])"
)
Array = np.ndarray[Any, Any]


def federation(name: str, seed: int = 0, ratio: float = 0.6) -> Federation:
    """Six clients; a slice and its two neighbours are the three channels, 384 x 384, 0 to 255.

    As in FedFA, slices are shuffled within a site: the last fifth is for testing, the one before
    for validation, and from the front comes the training share, at least 32. Slices of one patient
    are thus in all splits.

    Args:
        name: of the federation.
        seed: of the order of a site's slices.
        ratio: share of a site's slices to train on: 0.6, or 0.1 for mini-ProstateMRI.
    """
    root = place.need("prostate-mri", _CONTENTS, "prostate")
    clients = []
    for site in SITES:
        slices = _site(root, site)
        n = len(slices)
        order = torch.argsort(cutting.drawn(keys.fold(seed, "prostate", site), n), stable=True)
        train, val, test = sizes(n, ratio)
        cut = order[:train], order[n - test - val : n - test], order[n - test :]
        clients.append(cutting.client(site, slices, [c.sort().values for c in cut]))
    return Federation(
        name,
        tuple(clients),
        ("background", "prostate"),
        pixels.BYTES,
        task="segmentation",
        metric="dice",
        recommended={
            "rounds": 500, "batch": 16, "lr": 1e-4, "optimizer": "adam", "weight_decay": 1e-4,
            "reset_optimizer": False,
        },
    )  # fmt: skip


def sizes(n: int, ratio: float) -> tuple[int, int, int]:
    """Sizes of training, validation and test for a site of n slices.

    >>> sizes(260, 0.6), sizes(468, 0.1), sizes(175, 0.1)
    ((156, 52, 52), (46, 93, 93), (32, 35, 35))
    """
    fifth = int(0.2 * n)
    return max(int(ratio * n), 32), fifth, fifth


def _site(root: Path, site: str) -> Samples:
    packed = root / f"{site}.npz"
    if packed.is_file():
        arrays = read_npz(packed)
        if not {"x", "y"} <= set(arrays):
            raise BadData(f"{packed} has no arrays x and y: write it with np.savez(path, x=x, y=y)")
        x = channels_first(torch.from_numpy(arrays["x"]), str(packed))
        return Samples(x, torch.from_numpy(arrays["y"].astype(np.int64)))
    folder = place.child(root, site)
    if folder is None:
        raise BadData(f"{root} holds no {site}: put there {_CONTENTS}")
    masks = [p for p in place.inside(folder) if "segmentation" in p.name.lower() and _nifti(p)]
    volumes = [
        p for p in place.inside(folder) if "segmentation" not in p.name.lower() and _nifti(p)
    ]
    pairs = [(v, [m for m in masks if m.name.lower().startswith(_stem(v))]) for v in volumes]
    if not pairs or any(len(found) != 1 for _, found in pairs):
        raise BadData(f"{folder} has not one segmentation for each case: put there {_CONTENTS}")

    def read() -> Tree:
        parts = [sliced(reading.nifti(v), reading.nifti(found[0])) for v, found in pairs]
        x, y = (np.concatenate(part) for part in zip(*parts))
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}

    tree = once.decoded("prostate", [*volumes, *masks], read)
    return Samples(tree["x"], tree["y"].to(torch.int64))


def _nifti(path: Path) -> bool:
    return path.name.lower().endswith((".nii", ".nii.gz"))


def _stem(path: Path) -> str:
    return path.name.lower().partition(".")[0] + "_"


def sliced(volume: Array, mask: Array) -> tuple[Array, Array]:
    """Slices with their neighbours as uint8 [N, 3, H, W], and masks of 0 and 1 [N, H, W].

    Intensities are clipped at their 99 % quantile and stretched from 0 to 255. Slices without
    prostate, and the two outermost, are left out.

    >>> volume = np.arange(4.0)[None, None].repeat(2, 0).repeat(2, 1)
    >>> x, y = sliced(volume, np.ones((2, 2, 4), int) * 2)
    >>> x[:, :, 0, 0].tolist(), y.max().item()
    ([[0, 85, 170], [85, 170, 255]], 1)
    """
    clipped = np.clip(volume, None, np.quantile(volume, 0.99))
    low, high = clipped.min(), clipped.max()
    grey = ((clipped - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    labels = (mask > 0).astype(np.uint8)
    kept = [k for k in range(1, volume.shape[2] - 1) if labels[:, :, k].any()]
    x = np.stack([grey[:, :, k - 1 : k + 2].transpose(2, 0, 1) for k in kept])
    return x, np.stack([labels[:, :, k] for k in kept])
