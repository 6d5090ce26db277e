"""The options of a run: derived from declarations, read from the command line and from a file.

A protocol's hyperparameters are options as they stand in `fedshift.protocol.Protocol`; what else a
run takes is declared here in the same way. Values stay text until both sources are merged, so that
a file and the command line are checked by the same rules.
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedshift.errors import BadValue, UnknownName
from fedshift.hparam import Hyper, hp, hypers
from fedshift.privacy import Privacy
from fedshift.protocol import Protocol


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run takes beside its protocol, each with one value."""

    data: str = hp("shifted-digits", "a federation's name, a folder of images, or an .npz file")
    model: str = hp("", "a network's name, or one of your own: nets.py:Net")
    stages: str = hp("", "a model's submodules after which methods may put layers: conv1,conv2")
    head: str = hp("", "a model's last layer: fc")
    pretrained: str = hp("", "a .safetensors file with the weights that the model begins with")
    seed: int = hp(0, "of everything random", low=0)
    engine: str = hp("auto", "where clients train: auto, loop or stacked")
    workers: int = hp(0, "processes of the loop engine on a CPU", low=1)
    chunk: int = hp(0, "clients at a time in the stacked engine (0: as many as fit)", low=0)
    device: str = hp("auto", "auto, cpu, cuda or cuda:N")
    dtype: str = hp("float32", "float32, float64, tf32 or bf16")
    secure: bool = hp(False, "sum uploads under masks, so that none is seen (with engine flower)")
    checkpoint_every: int = hp(1, "rounds between checkpoints", low=1)
    out: str = hp("", "folder for what is written (must be new or empty)")


SETUP = hypers(Setup)
PROTOCOL = hypers(Protocol)
PRIVACY = {f"dp_{name}": hyper for name, hyper in hypers(Privacy).items()}
SEEDS = Hyper("seeds", 3, "how many seeds, counted from --seed", int, low=1)
_MODEL = "model."  # before the name of a model's argument among the settings
_ELSEWHERE = {"model": "the data's", "workers": "a measured rule", "out": "a new one in runs/"}


@dataclasses.dataclass
class Options:
    """What was asked for, converted and checked; what was not named is missing.

    Args:
        setup: fields of `Setup`.
        protocol: fields of `Protocol`.
        privacy: fields of `Privacy`, by their names as options (dp_clip).
        settings: hyperparameters of methods, by "mu" or "fedprox.mu".
        network: further arguments of the model, given as "model.NAME".
        hold_out: names of clients, or "each".
        seeds: how many (None: not named).
    """

    setup: dict[str, Any] = dataclasses.field(default_factory=dict)
    protocol: dict[str, Any] = dataclasses.field(default_factory=dict)
    privacy: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    hold_out: tuple[str, ...] = ()
    seeds: int | None = None

    def value(self, name: str) -> Any:
        """An option of `Setup`, or its default."""
        return self.setup.get(name, SETUP[name].default)

    def full_protocol(self, recommended: Mapping[str, Any]) -> Protocol:
        """The protocol: what was asked for, and else what the data recommend.

        >>> Options(protocol={"epochs": 2}).full_protocol({"steps": 5, "batch": 8}).local_work(16)
        4
        """
        values = {n: v for n, v in recommended.items() if n in PROTOCOL}
        if "epochs" in self.protocol:
            values.pop("steps", None)
        return Protocol(**{**values, **self.protocol})

    def full_privacy(self) -> Privacy | None:
        """Clipping and noise, where any of it was asked for.

        >>> Options(privacy={"dp_noise": 2.0}).full_privacy().noise
        2.0
        """
        given = {n.removeprefix("dp_"): v for n, v in self.privacy.items()}
        return Privacy(**given) if given else None


def flag(name: str) -> str:
    """How an option is written on the command line.

    >>> flag("weight_decay")
    '--weight-decay'
    """
    return "--" + name.replace("_", "-")


def add(parser: argparse.ArgumentParser, *, seeds: bool) -> None:
    """Give a parser the options of a run."""
    group = parser.add_argument_group("what is learnt, and where")
    for hyper in SETUP.values():
        _add(group, hyper)
    if seeds:
        _add(group, SEEDS)
    group.add_argument(
        "--hold-out",
        action="append",
        metavar="CLIENT",
        help="a client that does not train and is scored as unseen (may be repeated)"
        + ("" if seeds else "; 'each' leaves every client out in turn"),
    )
    group.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a hyperparameter of a method (may be repeated): mu=0.1, or fedprox.mu=0.1; or an "
        "argument of the model: model.groups=2",
    )
    group.add_argument(
        "--config",
        metavar="FILE.toml",
        help="a file of these options, named as here without dashes; [set] holds hyperparameters; "
        "what the command line says counts more",
    )
    group = parser.add_argument_group("protocol (default: what the data recommend)")
    for hyper in PROTOCOL.values():
        _add(group, hyper)
    group = parser.add_argument_group("differential privacy (off unless one of these is given)")
    for name, hyper in PRIVACY.items():
        _add(group, dataclasses.replace(hyper, name=name))


def add_one(parser: argparse.ArgumentParser, name: str) -> None:
    """Give a parser one option of a run alone."""
    _add(parser, SETUP[name])


def one(args: argparse.Namespace, name: str) -> Any:
    """The value of such an option, converted and checked."""
    text = getattr(args, name)
    return SETUP[name].default if text is None else _checked(SETUP[name], text, flag(name))


def whole(text: str | None, name: str) -> int:
    """A whole number from 1 on, or 0 where it was not named.

    >>> whole("3", "seeds"), whole(None, "seeds")
    (3, 0)
    """
    known = Hyper(name, 0, "", int, low=1)
    return 0 if text is None else int(_checked(known, text, flag(name)))


def _add(group: argparse._ActionsContainer, hyper: Hyper) -> None:
    """One option; its text is converted later, when the file has been read too."""
    default = _ELSEWHERE.get(hyper.name, "" if hyper.default == "" else _word(hyper.default))
    extra = [t for t in (_bounds(hyper), f"default: {default}" if default else "") if t]
    text = hyper.meaning + (f" [{'; '.join(extra)}]" if extra else "")
    text = text.replace("%", "%%")
    if hyper.kind is bool:
        group.add_argument(flag(hyper.name), action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = {int: "N", float: "X"}.get(hyper.kind, "WORD")
        group.add_argument(flag(hyper.name), metavar=metavar, help=text)


def _bounds(hyper: Hyper) -> str:
    limited = hyper.choices is not None or hyper.low is not None or hyper.high is not None
    return hyper.bounds() if limited and hyper.kind is not bool else ""


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------- reading


def read(args: argparse.Namespace) -> Options:
    """The options of a command line and of the file that it names."""
    given = {k: v for k, v in vars(args).items() if v is not None and k in _known(args)}
    texts = given.pop("set", [])
    options = Options()
    if args.config is not None:
        _from_file(options, Path(args.config), _known(args))
    named = _both(given)
    if named:
        raise BadValue(f"{named[0]} and {named[1]} cannot go together: give one of them")
    for name, value in given.items():
        _store(options, name, value, flag(name))
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise BadValue(f"--set {text} is incomplete: write --set NAME=VALUE, as in mu=0.1")
        options.settings[name.strip()] = value.strip()
    for name in [n for n in options.settings if n.startswith(_MODEL)]:
        options.network[name.removeprefix(_MODEL)] = _literal(options.settings.pop(name))
    return options


def _literal(value: Any) -> Any:
    """A number, yes or no, or list where a text is written as TOML writes one; else the text."""
    try:
        return tomllib.loads(f"value = {value}")["value"] if isinstance(value, str) else value
    except tomllib.TOMLDecodeError:
        return value


def _known(args: argparse.Namespace) -> set[str]:
    """The names of options that this command has."""
    return {*SETUP, *PROTOCOL, *PRIVACY, "hold_out", "set"} | ({"seeds"} & set(vars(args)))


def _from_file(options: Options, path: Path, known: set[str]) -> None:
    table = _toml(path)
    given = {str(k).replace("-", "_"): v for k, v in table.items()}
    for name in given:
        if name not in known:
            words = [n.replace("_", "-") for n in known]
            raise UnknownName(f"option in {path}", name.replace("_", "-"), words)
    if _both(given):
        raise BadValue(f"{path} has both steps and epochs: give one of them")
    settings = given.pop("set", {})
    if not isinstance(settings, Mapping):
        raise BadValue(f"set in {path} is no table: write [set] and below it name = value")
    options.settings.update(_flat(settings))
    for name, value in given.items():
        _store(options, name, value, f"{name.replace('_', '-')} in {path}")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValue(
            f"--config {path} cannot be read ({error.strerror}): check the path"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"--config {path} is not valid TOML ({error}): mend that place") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted names: `fedprox.mu = 0.1` is a table in a table."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _both(names: Iterable[str]) -> tuple[str, str] | None:
    return ("--steps", "--epochs") if {"steps", "epochs"} <= set(names) else None


def _store(options: Options, name: str, value: Any, where: str) -> None:
    """Convert one option and put it where it belongs; `where` says in messages who said it."""
    if name == "hold_out":
        many = [value] if isinstance(value, str) else value
        if not isinstance(many, list) or not all(isinstance(v, str) for v in many):
            raise BadValue(f"{where} is {value!r}: give names of clients")
        options.hold_out = tuple(dict.fromkeys(many))
    elif name == "seeds":
        options.seeds = _checked(SEEDS, value, where)
    elif name in PROTOCOL:
        # whoever says how long to train locally says it whole, whatever a file said
        other = {"steps": "epochs", "epochs": "steps"}.get(name)
        if other:
            options.protocol.pop(other, None)
        options.protocol[name] = _checked(PROTOCOL[name], value, where)
    elif name in PRIVACY:
        options.privacy[name] = _checked(PRIVACY[name], value, where)
    else:
        if isinstance(value, list) and name == "stages":
            value = ",".join(map(str, value))
        options.setup[name] = _checked(SETUP[name], value, where)


def _checked(hyper: Hyper, value: Any, where: str) -> Any:
    try:
        if isinstance(value, str) and hyper.kind is not str:
            value = value.strip()
        return hyper.check(value, "")
    except BadValue as error:
        raise BadValue(str(error).replace(f".{hyper.name}", where, 1)) from None
