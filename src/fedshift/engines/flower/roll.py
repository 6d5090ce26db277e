"""What sites say of themselves before a run, and the federation that follows: they must agree.

The server has no data. Its federation holds clients whose samples are elsewhere: tensors without
content (torch's "meta" device), of the right number, shape and type.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedshift._version import __version__
from fedshift.data.augment import Pipeline
from fedshift.engines.flower import codec
from fedshift.engines.flower.codec import DTYPES, Message, Packet, Rejected
from fedshift.errors import BadData, FedshiftError
from fedshift.federation import Client, Federation, Samples

Facts = Mapping[str, Any]
SAME = ("version", "task", "metric", "classes", "shape", "type", "pipeline")
_MOST = 1 << 40


def question(token: str | None = None) -> Packet:
    """What asks a site to describe itself."""
    return codec.encode(Message({"kind": "describe", "token": token or secrets.token_hex(8)}))


def read(site: str, packet: Packet) -> dict[str, Any]:
    """A site's description, checked."""
    head = codec.head_of(packet)
    if head.get("kind") == "failed":
        raise Rejected(f"the site failed: {codec.short(head.get('why', ''), 300)}")
    if head.get("kind") != "describe" or head.get("site") != site or packet.pieces:
        raise Rejected("it does not describe itself")
    if head.get("version") != __version__:
        raise Rejected(
            f"it runs fedshift {codec.short(head.get('version'))}, the server {__version__}: "
            "install one version everywhere"
        )
    try:
        found = {
            **{n: head[n] for n in SAME},
            **{n: _count(head[n], n) for n in ("train", "val", "test")},
        }
        shape, classes = found["shape"], found["classes"]
        if not all(isinstance(c, str) for c in classes) or found["type"] not in DTYPES:
            raise TypeError
        if not shape or not all(isinstance(n, int) and 0 < n < 1 << 20 for n in shape):
            raise TypeError
    except (KeyError, TypeError):
        raise Rejected("its description is incomplete") from None
    return found


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise Rejected(f"its number of {what} samples is none")
    return value


def federation(
    name: str, names: Sequence[str], told: Mapping[str, Facts], recommended: Mapping[str, Any]
) -> Federation:
    """The federation of sites in order; those that have not told yet are taken to be alike.

    >>> facts = {"version": __version__, "task": "classification", "metric": "accuracy",
    ...          "classes": ["x", "y"], "shape": [1, 8, 8], "type": "float32",
    ...          "pipeline": Pipeline().to_config(), "train": 30, "val": 5, "test": 9}
    >>> fed = federation("clinics", ["a", "b"], {"a": facts, "b": {**facts, "train": 20}}, {})
    >>> [len(c.train) for c in fed.clients], fed.facts().shape
    ([30, 20], (1, 8, 8))
    """
    first = next((n for n in names if n in told), None)
    if first is None:
        raise BadData("no site has described its data: see that one is connected at least")
    like = told[first]
    for site in names:
        for what in SAME if site in told else ():
            if told[site][what] != like[what]:
                raise BadData(
                    f"sites disagree on the {what} of their data: '{first}' has "
                    f"{_brief(like[what])}, '{site}' has {_brief(told[site][what])}; make them one"
                )

    def absent(count: int) -> Samples:
        x = torch.empty((count, *like["shape"]), dtype=DTYPES[like["type"]], device="meta")
        return Samples(x, torch.empty((count,), dtype=torch.int64, device="meta"))

    clients = [
        Client(site, *(absent(told[site][split] if site in told else 0) for split in _SPLITS))
        for site in names
    ]
    try:
        pipeline = Pipeline.from_config(like["pipeline"])
    except FedshiftError:
        raise
    except Exception as error:
        raise BadData(f"the pipeline of site '{first}' cannot be read: {error}") from None
    return Federation(
        name=name,
        clients=tuple(clients),
        classes=tuple(like["classes"]),
        pipeline=pipeline,
        task=like["task"],
        metric=like["metric"],
        recommended=recommended,
    )


_SPLITS = ("train", "val", "test")


def _brief(value: Any) -> str:
    return codec.short(json.dumps(value), 80)
