"""Sets that are trees of image files: `<set>/<domain>/<class>/<file>`, a client for each domain."""

from __future__ import annotations

import csv
import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedshift import keys
from fedshift.data import cache, images
from fedshift.data.image_folder import Reader
from fedshift.data.masks import Entry
from fedshift.data.partition import SPLITS
from fedshift.data.sets import place, reading
from fedshift.errors import BadData, UnknownName
from fedshift.federation import Client, Samples

Domains = Mapping[str, Sequence[str]]  # a client's name -> how publishers call its folder
Cut = Callable[[str, Tensor, Tensor], Sequence[Tensor]]  # domain, labels, random order -> splits


@dataclasses.dataclass(frozen=True)
class ImageTree:
    """The files of a set: its classes, and each domain's images in a fixed order."""

    root: Path
    classes: tuple[str, ...]
    domains: dict[str, list[Entry]]

    def labels(self, domain: str) -> Tensor:
        """The label of each image of a domain."""
        position = {c: k for k, c in enumerate(self.classes)}
        return torch.tensor([position[e.label] for e in self.domains[domain]])

    def order(self, domain: str, seed: int) -> Tensor:
        """A random number per image, which follows from its name alone: not from its neighbours."""
        key = keys.fold(seed, "tree", domain)
        return torch.tensor([keys.fold(key, e.label, e.path.name) for e in self.domains[domain]])

    def named(self, domain: str, names: set[tuple[str, str]], where: str) -> Tensor:
        """The positions of images by class folder and file name, all of which must be there."""
        found = [
            k for k, e in enumerate(self.domains[domain])
            if (place.plain(e.path.parent.name), e.path.name) in names
        ]  # fmt: skip
        if len(found) < len(names):
            there = {(place.plain(e.path.parent.name), e.path.name) for e in self.domains[domain]}
            folder, file = min(names - there)
            raise BadData(
                f"{where} names {folder}/{file}, which is not among the images of '{domain}' under "
                f"{self.root}: restore the image, or remove the list"
            )
        return torch.tensor(found, dtype=torch.int64)

    def clients(
        self, cut: Cut, size: int, seed: int, memory: int | None = None
    ) -> tuple[Client, ...]:
        """A client for each domain, cut as told; every image decodes once, for all runs."""
        size_ = images.as_size(size)
        assert size_ is not None
        read = Reader(self.classes, size_, grey=False, mapped=True).read
        made = []
        for domain, entries in self.domains.items():
            splits = cut(domain, self.labels(domain), self.order(domain, seed))
            weight = sum(map(len, splits)) * len(self.domains) * 3 * math.prod(size_)
            mapped = weight > cache.budget(memory)
            everything: Samples = read(entries)
            made.append(Client(domain, *(cache.take(everything, s, mapped=mapped) for s in splits)))
        return tuple(made)


def scan(
    name: str,
    contents: str,
    domains: Domains,
    *,
    classes: Sequence[str] = (),
    spelt: Mapping[str, str] | None = None,
    published: Mapping[str, int] | None = None,
    others: Sequence[str] = (),
) -> ImageTree:
    """The images of a set.

    Args:
        name: of the set, and of its folder under $FEDSHIFT_DATA.
        contents: what an error tells the user to put there.
        domains: the clients and how their folders may be called.
        classes: their folders in the order of the labels; those that are found where none are
            given. Others are ignored.
        spelt: further names of class folders.
        published: the number of images of each domain.
        others: further names of the set's folder.
    """
    root = place.need(name, contents, *others)
    found: dict[str, list[tuple[str, Path]]] = {}
    for domain, folder in _folders(root, name, domains, contents).items():
        found[domain] = [(kind.name, kind) for kind in place.folders(folder)]
    known = {
        place.plain(c): c for c in classes or sorted({k for f in found.values() for k, _ in f})
    }
    for other, c in (spelt or {}).items():
        known[place.plain(other)] = c
    listed = {
        domain: [
            Entry(path, known[place.plain(kind)])
            for kind, folder in kinds if place.plain(kind) in known
            for path in place.inside(folder) if path.suffix.lower() in images.SUFFIXES
        ]
        for domain, kinds in found.items()
    }  # fmt: skip
    for domain, entries in listed.items():
        if not entries:
            raise BadData(f"{root} holds no images of '{domain}': put there {contents}")
    if published:
        place.compare_counts(f"'{name}'", {d: len(e) for d, e in listed.items()}, published)
    return ImageTree(root, tuple(dict.fromkeys(known.values())), listed)


def _folders(root: Path, name: str, domains: Domains, contents: str) -> dict[str, Path]:
    """The folder of each domain, directly in the set's or one folder below."""
    for base in (root, *place.folders(root)):
        found = {
            domain: next(filter(None, (place.child(base, n) for n in (domain, *names))), None)
            for domain, names in domains.items()
        }
        there = {domain: folder for domain, folder in found.items() if folder}
        if len(there) == len(domains):
            return there
        if len(there) > 1 or (there and base == root):
            missing = next(domain for domain in domains if domain not in there)
            raise BadData(f"{base} has no folder '{missing}': '{name}' is {contents}")
    raise place.nothing(name, root, contents)


def from_csv(tree: ImageTree) -> dict[str, list[Tensor]] | None:
    """The splits that a file `split.csv` (client, class, file, split) in the set's folder gives."""
    path = tree.root / "split.csv"
    if not path.is_file():
        return None
    rows = list(csv.DictReader(reading.text(path).splitlines()))
    columns = {"client", "class", "file", "split"}
    if not rows or not columns <= set(rows[0]):
        raise BadData(f"{path} has no columns client, class, file, split: correct its first line")
    names: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in rows:
        at = (place.plain(row["client"]), row["split"])
        names.setdefault(at, set()).add((place.plain(row["class"]), row["file"]))
    for client in {row["client"] for row in rows}:
        if place.plain(client) not in map(place.plain, tree.domains):
            raise UnknownName(f"client in {path}", client, tree.domains)
    strange = {split for _, split in names} - set(SPLITS)
    if strange:
        raise BadData(f"{path} has a split '{min(strange)}': splits are {', '.join(SPLITS)}")
    found = {
        d: [tree.named(d, names.get((place.plain(d), s), set()), str(path)) for s in SPLITS]
        for d in tree.domains
    }
    unused = sum(map(len, tree.domains.values())) - sum(len(s) for f in found.values() for s in f)
    if unused:
        warnings.warn(
            f"{path} does not name {unused} of the images, which are left out", stacklevel=2
        )
    return found
