"""Several methods over several seeds under one protocol, side by side.

A comparison's folder holds `config.toml`, which says what is compared, and every run in
`<method>/seed<k>`; so an interrupted comparison goes on where it was.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift import files, methods, together
from fedshift.compose import Composed
from fedshift.errors import BadRun, BadValue
from fedshift.federation import Federation
from fedshift.method import Method
from fedshift.models import ModelSpec
from fedshift.privacy import Privacy
from fedshift.protocol import Protocol
from fedshift.recommended import recommended_model, recommended_protocol
from fedshift.report import Report
from fedshift.report.read import RunRecord
from fedshift.resume import needed, privacy_of
from fedshift.run import Run

Play = Callable[[Sequence[Run]], object]
CONFIG = "config.toml"


class Comparison:
    """Runs of several methods, ready to be printed and saved.

    Args:
        records: one for each run, methods in the order given, seeds rising.
        select: the selection rule of the protocol.
    """

    def __init__(self, records: Sequence[RunRecord], select: str = "last") -> None:
        self.records = list(records)
        self.select = select

    def table(self, select: str | None = None, format: str = "text") -> str:
        """One row a method, mean ± standard deviation over seeds.

        Args:
            select: the selection rule (None: the protocol's).
            format: "text", "markdown", "csv" or "latex".
        """
        return Report(self.records).table(select or self.select, format)

    def save(self, path: str | os.PathLike[str], select: str | None = None) -> None:
        """Save under a name whose ending says what: .html, .txt, .md, .csv or .tex."""
        Report(self.records).save(path, select or self.select)


@dataclasses.dataclass(frozen=True)
class Contest:
    """What is compared: everything that the runs of a comparison have in common, and what not.

    `options` are the remaining arguments of `Run`.
    """

    federation: Federation
    methods: tuple[Composed, ...]
    protocol: Protocol
    model: ModelSpec
    seeds: tuple[int, ...]
    out: Path | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        names = [m.name for m in self.methods]
        if not names:
            raise BadValue("no method to compare: name at least one")
        for name in names:
            if names.count(name) > 1:
                raise BadValue(f"'{name}' stands twice in the comparison: name it once")
        if not self.seeds:
            raise BadValue("no seed to compare over: give at least one")

    def play(
        self,
        play: Play = together.play,
        say: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Comparison:
        """Play all runs that are left; `play` plays those of a method."""
        self.open()
        spoken = {k: v for k, v in (("say", say), ("warn", warn)) if v is not None}
        records = []
        for method in self.methods:
            make = functools.partial(self.run, method, spoken=spoken)
            for runs in together.groups(make, self.seeds):
                play(runs)
                records += [record for run in runs for record in run.report().runs]
        return Comparison(records, self.protocol.select)

    def run(self, method: Composed, seed: int, spoken: Mapping[str, Any] | None = None) -> Run:
        """The run of a method and a seed: a new one, or the one that is in its folder."""
        folder = None if self.out is None else self.out / method.name / f"seed{seed}"
        if folder is not None and (folder / CONFIG).is_file():
            return Run.resume(folder, self.federation, self.model, method, **(spoken or {}))
        return Run(
            self.federation,
            method,
            self.protocol,
            self.model,
            seed=seed,
            out=folder,
            **self.options,
            **(spoken or {}),
        )

    def open(self) -> None:
        """Write what is compared into the folder, or find it there."""
        out = self.out
        if out is None:
            return
        if (out / CONFIG).is_file() and files.read_toml(out / CONFIG) == _as_read(self.config()):
            return
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadRun(
                f"'{out}' holds something already: choose another folder with --out, or continue "
                f"a comparison that is in it with: {files.resuming(out, 'compare')}"
            )
        files.write_toml(out / CONFIG, self.config())

    def config(self) -> dict[str, Any]:
        """The contest as plain values, from which `read` makes it again."""
        sources = [[methods.spec_of(p) or "" for p in m.parts] for m in self.methods]
        return {
            "methods": [m.name for m in self.methods],
            "sources": ["+".join(s) if all(s) else "" for s in sources],
            "seeds": list(self.seeds),
            "data": self.federation.source,
            "network": self.model.to_dict() if self.model.rebuildable else {"name": ""},
            "settings": {m.name: methods.settings_of(m) for m in self.methods},
            "protocol": dataclasses.asdict(self.protocol),
            "options": {n: _plain(v) for n, v in self.options.items()},
        }


def compare(
    federation: Federation,
    methods: Sequence[Method | Composed | str],
    protocol: Protocol | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    model: Any = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods over several seeds under one protocol.

    Args:
        federation: who learns what.
        methods: methods, compositions, or names such as "fedprox+mixup".
        protocol: how they train (None: what the federation recommends).
        seeds: how many (counted from 0), or which.
        model: as for `Run`.
        out: a folder for the runs (None: nothing is written); a comparison of the very same
            configuration in it goes on.
        options: further arguments of `Run`, such as `device` or `hold_out`.

    >>> import fedshift as fs
    >>> protocol = fs.Protocol(rounds=1, steps=1, batch=8)
    >>> data = fs.data.load("shifted-digits")
    >>> found = fs.compare(data, ["fedavg", "fedprox"], protocol, seeds=1, model="mlp")
    >>> [r.method for r in found.records]
    ['fedavg', 'fedprox']
    """
    spoken = {name: options.pop(name) for name in ("say", "warn") if name in options}
    given = recommended_model(federation) if model is None else model
    return Contest(
        federation,
        tuple(_composed(m) for m in methods),
        protocol or recommended_protocol(federation),
        ModelSpec.of(given),
        tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        None if out is None else Path(out),
        options,
    ).play(**spoken)


def _composed(method: Method | Composed | str) -> Composed:
    return methods.make(method) if isinstance(method, str) else Composed.of(method)


def _plain(option: Any) -> Any:
    return dataclasses.asdict(option) if isinstance(option, Privacy) else option


def _as_read(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table as it comes back from a file."""
    import tomllib

    return tomllib.loads(files.dumps_toml(table))


def read(folder: str | os.PathLike[str]) -> Contest:
    """The contest whose folder this is, from its own configuration."""
    from fedshift import data

    folder = Path(folder)
    if not folder.is_dir():
        raise BadRun(f"comparison folder '{folder}' does not exist: check the path")
    if not (folder / CONFIG).is_file():
        raise BadRun(f"'{folder}' holds no {CONFIG}: it is not a comparison's folder")
    config = files.read_toml(folder / CONFIG)
    missing = {"methods", "sources", "seeds", "settings", "protocol"} - set(config)
    if missing:
        raise BadRun(
            f"'{folder}' is not a comparison's folder (its {CONFIG} lacks "
            f"{', '.join(sorted(missing))}): give the --out of fedshift compare"
        )
    made = []
    for name, source in zip(config["methods"], config["sources"]):
        text = needed(source, f"method {name}", "method", folder)
        made.append(methods.make(text, config["settings"].get(name, {})))
    needed(config["network"]["name"], "model", "model", folder)
    return Contest(
        data.load(needed(config["data"], "data", "federation", folder)),
        tuple(made),
        Protocol(**config["protocol"]),
        ModelSpec.from_dict(config["network"]),
        tuple(config["seeds"]),
        folder,
        {**config["options"], "privacy": privacy_of(config["options"])},
    )
