"""A run folder as a record: its configuration and what was measured, round by round.

Reads `config.toml` and `metrics.jsonl` and needs nothing but Python: the folder of a run that is
still going, or was killed, can be read at any time.

`config.toml` holds `method`, `data`, `model`, `seed`, `metric`, `view`, `engine` and the tables
`protocol` and `versions`; what is missing is left blank. `metrics.jsonl` has one object a line: for
every evaluated round and client the scores (`"client": "clinic"`), and for every round what
concerns all (`"client": null`), the `warnings` given in it among that.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedshift.errors import BadRun
from fedshift.files import read_lines, read_toml

SPENT = ("epsilon", "epsilon_exchange", "delta")  # the fields that `fedshift.ledger` gives a round
TRAIN = "train"  # the stage that every method has; others prepare, warm up or tune


@dataclasses.dataclass(frozen=True)
class ClientScores:
    """What one client scored in one round; None is what was not measured."""

    client: str
    role: str = "seen"
    test: float | None = None
    val: float | None = None
    personal_test: float | None = None
    personal_val: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: float | None = None

    def score(self, split: str, view: str) -> float | None:
        """The score on a split ("test", "val") of the "global" or the "personal" model."""
        shared: float | None = getattr(self, split)
        own: float | None = getattr(self, f"personal_{split}")
        if self.role == "unseen" and own is None:
            return shared  # whoever never took part has one model alone
        return shared if view == "global" else own


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One round: the scores of the clients and what the round cost."""

    round: int
    clients: tuple[ClientScores, ...] = ()
    loss: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: float | None = None
    participants: tuple[str, ...] = ()
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stage: str = TRAIN
    spent: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    def scores(self, split: str, view: str = "global", role: str = "seen") -> dict[str, float]:
        """Each client's score, where it has one."""
        found = {c.client: c.score(split, view) for c in self.clients if c.role == role}
        return {name: score for name, score in found.items() if score is not None}

    def mean(self, split: str, view: str = "global") -> float | None:
        """The mean over the clients that took part in training, each counting the same.

        >>> RoundRecord(1, (ClientScores("a", test=0.5), ClientScores("b", test=1.0))).mean("test")
        0.75
        """
        scores = self.scores(split, view).values()
        return math.fsum(scores) / len(scores) if scores else None


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run: its configuration and its rounds, in order."""

    folder: str
    method: str
    seed: int | None
    data: str
    model: str
    metric: str
    engine: str
    protocol: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: tuple[RoundRecord, ...]
    warnings: tuple[str, ...] = ()
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def view(self) -> str:
        """Which model the scores are of, as the method declares: "global" or "personal"."""
        return str(self.config.get("view") or "global")

    def clients(self, role: str = "seen") -> tuple[str, ...]:
        """The clients that were scored, in the order of the federation."""
        names = {c.client: None for r in self.rounds for c in r.clients if c.role == role}
        return tuple(names)

    @property
    def privacy(self) -> dict[str, Any]:
        """What was asked of differential privacy, and what it has cost; empty without it."""
        spent = self.rounds[-1].spent if self.rounds else {}
        return {**_table(self.config.get("privacy")), **spent}

    def scored(self, split: str, view: str = "global") -> list[RoundRecord]:
        """The rounds in which this split was scored."""
        return [r for r in self.rounds if r.scores(split, view)]

    def per_round(self, quantity: str) -> float | None:
        """The mean over rounds of "bytes_up", "bytes_down" or "seconds"."""
        train = [r for r in self.rounds if r.stage == TRAIN]
        values = [v for r in train if (v := getattr(r, quantity)) is not None]
        return math.fsum(values) / len(values) if values else None


def read_run(folder: str | os.PathLike[str]) -> RunRecord:
    """Read a run folder, finished or not."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise BadRun(f"{folder} is not a run folder (it has no config.toml): give a run's --out")
    config = read_toml(folder / "config.toml")
    metrics = folder / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.is_file() else []
    return record(config, lines, os.fspath(folder))


def find_runs(folder: str | os.PathLike[str]) -> list[RunRecord]:
    """Read a run folder, or all run folders inside a comparison's folder.

    They come in the order of the `methods` of the comparison's own config.toml, where it has one,
    and else in the order of their paths.
    """
    folder = Path(folder)
    if (folder / "metrics.jsonl").is_file():
        return [read_run(folder)]
    inside = sorted(p.parent for p in folder.glob("**/metrics.jsonl") if not _hidden(p, folder))
    if not inside:
        raise BadRun(f"{folder} holds no runs (no metrics.jsonl): give the --out of a run")
    runs = [read_run(p) for p in inside]
    if (folder / "config.toml").is_file():
        order = [str(m) for m in read_toml(folder / "config.toml").get("methods", ())]
        place = {method: k for k, method in enumerate(order)}
        runs.sort(key=lambda run: place.get(run.method, len(order)))
    return runs


def record(
    config: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], folder: str = ""
) -> RunRecord:
    """Make a record of a configuration and the lines of metrics, as they stand in the files."""
    rounds: dict[int, dict[str, Any]] = {}
    warnings = [str(w) for w in config.get("warnings", ())]
    for number, line in enumerate(lines, start=1):
        warnings += map(str, line.get("warnings") or ())
        stage = str(line.get("stage") or TRAIN)
        if line.get("round") is None or not (stage == TRAIN or _scored(line)):
            continue
        try:
            entry = rounds.setdefault(int(line["round"]), {"clients": {}, "all": {}})
            entry["stage"] = stage
            if line.get("client") is None:
                entry["all"] = _round_fields(line)
            else:
                scores = _client_scores(line)
                entry["clients"][scores.client] = scores
        except (TypeError, ValueError, AttributeError):
            raise BadRun(
                f"{Path(folder, 'metrics.jsonl')}, record {number}, is not what fedshift writes: "
                "delete that line"
            ) from None
    return RunRecord(
        folder=folder,
        method=_name(config.get("label") or config.get("method"), "?"),
        seed=config.get("seed"),
        data=_name(config.get("data")),
        model=_name(config.get("model")),
        metric=_name(config.get("metric"), "accuracy"),
        engine=_name(config.get("engine")),
        protocol=_table(config.get("protocol")),
        versions={k: str(v) for k, v in _table(config.get("versions")).items()},
        rounds=tuple(_round(number, rounds[number]) for number in sorted(rounds)),
        warnings=tuple(dict.fromkeys(warnings)),
        config=config,
    )


def _round(number: int, entry: Mapping[str, Any]) -> RoundRecord:
    """A round; costs that are only known client by client are added up."""
    clients = tuple(entry["clients"].values())
    fields = dict(entry["all"])
    for quantity in ("bytes_up", "bytes_down", "seconds"):
        parts = [v for c in clients if (v := getattr(c, quantity)) is not None]
        if fields.get(quantity) is None and parts:
            fields[quantity] = sum(parts)
    return RoundRecord(number, clients, stage=entry["stage"], **fields)


def _scored(line: Mapping[str, Any]) -> bool:
    """Whether a line holds scores: the rounds of a preparing stage have none."""
    return any(
        line.get(n) is not None for n in ("test", "val", "personal_test", "personal_val", "mean")
    )


def _round_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    loss = line.get("loss")
    if loss is not None and not isinstance(loss, Mapping):
        loss = {"loss": loss}
    return {
        "loss": {k: float(v) for k, v in (loss or {}).items() if v is not None},
        "bytes_up": _whole(line.get("bytes_up")),
        "bytes_down": _whole(line.get("bytes_down")),
        "seconds": _number(line.get("seconds")),
        "participants": tuple(map(str, line.get("participants") or ())),
        "left_out": {str(k): str(v) for k, v in dict(line.get("left_out") or {}).items()},
        "spent": {n: _number(line[n]) for n in SPENT if n in line},
    }


def _client_scores(line: Mapping[str, Any]) -> ClientScores:
    return ClientScores(
        client=str(line["client"]),
        role=str(line.get("role") or "seen"),
        test=_number(line.get("test")),
        val=_number(line.get("val")),
        personal_test=_number(line.get("personal_test")),
        personal_val=_number(line.get("personal_val")),
        bytes_up=_whole(line.get("bytes_up")),
        bytes_down=_whole(line.get("bytes_down")),
        seconds=_number(line.get("seconds")),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _name(value: Any, blank: str = "") -> str:
    """A name that may stand alone or in a table with its settings."""
    if isinstance(value, Mapping):
        value = value.get("label") or value.get("name")
    return str(value) if value else blank


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
