"""What was seen on the wire as rows of a table, and the sentences that belong beside it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from fedshift.method import Stage
from fedshift.wire.items import Item, Wire

_WAYS = ("down", "up", "kept")
COLUMNS = ("way", "what", "shape", "bytes", "kind", "use", "when")
_USES = {"alike": "the same for all", "own": "the client's own"}


def rows(wire: Wire) -> list[dict[str, str]]:
    """A row for every group of items: what goes down, what goes up, what is kept.

    Tensors of one network or group that cross alike share a row; `Wire.items` has each.
    """
    rounds: dict[Item, dict[str, tuple[int, ...]]] = {}
    for item in wire.items:
        rounds.setdefault(_same(item), {})[item.stage] = item.rounds
    groups: dict[tuple[str, ...], list[Item]] = {}
    for item, found in rounds.items():
        group = "" if item.of_model else group_of(item.name)
        times = "" if item.way == "kept" else when(found, wire.stages)
        times = "before training" if wire.pooled else times
        groups.setdefault((item.way, group, item.kind, item.use, times), []).append(item)
    rest = any(i.of_model for i in wire.select("kept"))
    ordered = sorted(groups.items(), key=lambda entry: _WAYS.index(entry[0][0]))
    return [_row(items, times, rest) for (*_, times), items in ordered]


def _same(item: Item) -> Item:
    """What is the same thing in every stage."""
    return dataclasses.replace(item, stage="", rounds=())


def _row(items: Sequence[Item], times: str, rest: bool) -> dict[str, str]:
    first = items[0]
    what, count = first.name, f" ({len(items)} tensors)" if len(items) > 1 else ""
    if first.of_model and first.way != "kept":
        what = "the rest of the model" if rest else "the model"
    elif what.startswith("tuned/"):
        what = "the model as it left training"
    elif count:
        what += ", …"
    return {
        "way": first.way,
        "what": what + count,
        "shape": shapes([i.shape for i in items]),
        "bytes": f"{sum(i.bytes for i in items):,}",
        "kind": first.kind,
        "use": _USES.get(first.use, first.use),
        "when": times,
    }


def group_of(name: str) -> str:
    """What a tensor shares a row with: the others of its network, or of its part of an upload.

    >>> group_of("scaffold/conv1.weight"), group_of("fedlsi/head/layer.weight")
    ('scaffold/', 'fedlsi/head/')
    >>> group_of("fraug_rtnet.norm.weight"), group_of("fedfa_conv2.mean")  # numbered layers, too
    ('fraug_rtnet', 'fedfa_conv')
    """
    if "/" in name:
        return name[: name.rindex("/") + 1]
    return re.sub(r"\d+", "", name.partition(".")[0])


def shapes(found: Sequence[tuple[int, ...]]) -> str:
    """The shape of a tensor, or how many numbers several have together.

    >>> shapes([(64, 3)]), shapes([()]), shapes([(2, 3), (3,)])
    ('64 × 3', 'one number', '9 numbers')
    """
    if len(found) == 1:
        return " × ".join(map(str, found[0])) or "one number"
    total = 0
    for shape in found:
        numbers = 1
        for size in shape:
            numbers *= size
        total += numbers
    return f"{total:,} numbers"


def when(rounds: Mapping[str, tuple[int, ...]], stages: Sequence[Stage]) -> str:
    """In which rounds of which stages, in words.

    >>> first, train = Stage("warm-up", 1, "visit"), Stage("train", 2)
    >>> when({"train": (1, 2)}, [train]), when({"train": (2,)}, [train])
    ('every round', 'from round 2')
    >>> when({"warm-up": (1,), "train": (1, 2)}, [first, train]), when({"warm-up": (1,)}, [first])
    ('every round', "once, in 'warm-up'")
    >>> when({"train": (1, 2)}, [first, train])
    'every round of training'
    """
    if len(stages) > 1 and all(len(rounds.get(s.name, ())) == s.rounds for s in stages):
        return "every round"
    words = []
    for stage in stages:
        if not (seen := rounds.get(stage.name)):
            continue
        if stage.rounds == 1:
            words.append(f"once, in '{stage.name}'")
            continue
        if len(seen) == stage.rounds:
            times = "every round"
        elif seen == tuple(range(seen[0], stage.rounds + 1)):
            times = f"from round {seen[0]}"
        else:
            times = f"in round {', '.join(map(str, seen))}"
        of = "training" if stage.name == "train" else f"'{stage.name}'"
        words.append(f"{times} of {of}" if len(stages) > 1 else times)
    return "; ".join(words)


def sentences(wire: Wire) -> list[str]:
    """What is to be said beside the table."""
    if wire.pooled:
        return [
            "Nothing is federated: every client hands all its training data, labels included, to "
            "one party, which trains alone."
        ]
    lines = [_bytes(wire, stage) for stage in wire.stages]
    uses = {i.use for i in wire.select("up", of_model=True)}
    if "individual" in uses:
        lines.append("The server looks at each client's model by itself.")
    elif uses:
        lines.append(
            "Of the clients' models the server needs the mean alone, which a secure sum can carry. "
            "Where the protocol weighs clients by samples, their numbers of samples go up too."
        )
    else:
        lines.append("Nothing of the model goes up.")
    if wire.settings:
        values = ", ".join(f"{n}={v}" for n, v in wire.settings.items())
        lines.append(f"Seen with {values} to save time; sizes do not depend on it.")
    return lines


def _bytes(wire: Wire, stage: Stage) -> str:
    """What a client's last round of a stage amounts to."""
    where = f"In {'' if stage.rounds == 1 else 'the last round of '}'{stage.name}'"
    where = "In a round of training" if stage.name == "train" else where
    parts = []
    for way, deed in (("down", "gets"), ("up", "sends")):
        model, more = (wire.bytes(way, stage.name, of_model) for of_model in (True, False))
        split = f" ({model:,} of the model, {more:,} beyond it)" if model and more else ""
        parts.append(f"{deed} {f'{model + more:,} bytes' if model + more else 'nothing'}{split}")
    return f"{where}, a client {' and '.join(parts)}."
