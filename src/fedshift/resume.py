"""From a run folder's `config.toml` back to the objects that it describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedshift import files, keys, methods
from fedshift import plan as plans
from fedshift.compose import Composed
from fedshift.data.augment import Pipeline
from fedshift.engines.flower.secagg.terms import secure_of
from fedshift.errors import BadRun, FedshiftError
from fedshift.federation import Facts, Federation
from fedshift.method import Method
from fedshift.models import ModelSpec
from fedshift.plan import Plan
from fedshift.privacy import Privacy
from fedshift.protocol import Protocol

if TYPE_CHECKING:
    from fedshift.run import Run


def read_config(folder: Path) -> dict[str, Any]:
    """A run folder's configuration, or an error that says what the folder is instead."""
    path = folder / "config.toml"
    if not folder.is_dir():
        raise BadRun(f"run folder '{folder}' does not exist: check the path")
    if not path.is_file():
        raise BadRun(f"'{folder}' holds no config.toml: it is not a run's folder")
    config = files.read_toml(path)
    missing = {"method", "protocol", "source", "network", "settings", "facts"} - set(config)
    if missing:
        raise BadRun(f"{path} lacks {', '.join(sorted(missing))}: it is no run's configuration")
    return config


def rebuild(
    kind: type[Run],
    folder: Path,
    federation: Federation | None,
    model: Any,
    method: Method | Composed | None,
    options: Mapping[str, Any],
) -> Run:
    """The run that a folder describes, at its beginning."""
    from fedshift import data

    config = read_config(folder)
    secure = secure_of(config.get("secure", {}), str(folder / "config.toml"))
    machine = {"workers": config.get("workers"), "secure": secure, **options}
    try:
        if federation is None:
            federation = data.load(needed(config["source"]["data"], "data", "federation", folder))
        run = kind(
            federation,
            method or method_of(config, folder),
            Protocol(**config["protocol"]),
            model or spec_of(config, folder),
            seed=config["seed"],
            engine=config["engine"],
            chunk=config["chunk"],
            device=config["device"],
            dtype=config["dtype"],
            out=folder,
            hold_out=config["hold_out"],
            checkpoint_every=config["checkpoint_every"],
            privacy=privacy_of(config),
            **machine,
        )
    except (KeyError, TypeError) as error:
        if isinstance(error, FedshiftError):
            raise
        raise BadRun(
            f"{folder / 'config.toml'} cannot be used ({error}): restore it as it was written"
        ) from None
    _check_same(run.config(), config, folder)
    return run


# entries of a configuration, and the argument that decides each
_GIVEN_AGAIN = {
    "facts": "federation",
    "pipeline": "federation",
    "method": "method",
    "settings": "method",
}


def _check_same(now: Mapping[str, Any], saved: Mapping[str, Any], folder: Path) -> None:
    """Refuse data, a method or a pipeline other than those that the run began with."""
    for key, argument in _GIVEN_AGAIN.items():
        if files.dumps_toml({key: now[key]}) != files.dumps_toml({key: saved.get(key)}):
            raise BadRun(
                f"'{folder}' was begun with another {argument} (its {key} differ): continue with "
                f"the same, fs.Run.resume('{folder}', {argument}=…)"
            )


def plan_of(
    config: Mapping[str, Any], folder: Path, device: torch.device, trained: bool = False
) -> Plan:
    """What is the same for every trip of a run, from its configuration alone.

    `trained`: the weights that the run began with are not needed, nor the file that they are in.
    """
    try:
        given = config["facts"]
        shape = tuple(given["shape"])
        facts = Facts(
            given["task"],
            len(given["classes"]),
            shape,
            tuple(given["clients"]),
            metric=config.get("metric", ""),
        )
        spec = spec_of(config, folder)
        spec = dataclasses.replace(spec, pretrained="") if trained else spec
        key = keys.fold(config["seed"], "model")
        network = spec.build(shape, facts.classes, key, facts.task)
        return plans.make(
            facts,
            Pipeline.from_config(config.get("pipeline", {})),
            method_of(config, folder),
            Protocol(**config["protocol"]),
            network,
            device,
            config["dtype"],
            config["seed"],
            privacy_of(config),
        )
    except (KeyError, TypeError) as error:
        if isinstance(error, FedshiftError):
            raise
        raise BadRun(
            f"{folder / 'config.toml'} cannot be used ({error}): restore it as it was written"
        ) from None


def privacy_of(config: Mapping[str, Any]) -> Privacy | None:
    """The privacy that a configuration asks for."""
    return Privacy(**config["privacy"]) if "privacy" in config else None


def method_of(config: Mapping[str, Any], folder: Path) -> Composed:
    """The method that a configuration names."""
    text = needed(config["source"]["method"], "method", "method", folder)
    return methods.make(text, config["settings"])


def spec_of(config: Mapping[str, Any], folder: Path) -> ModelSpec:
    """The model that a configuration names."""
    needed(config["network"].get("name", ""), "model", "model", folder)
    return ModelSpec.from_dict(config["network"])


def needed(text: str, what: str, argument: str, folder: Path) -> str:
    """A text of a configuration, or an error where it was left empty."""
    if not text:
        raise BadRun(
            f"the {what} of '{folder}' came from Python and cannot be found again: continue with "
            f"fs.Run.resume('{folder}', {argument}=…)"
        )
    return text
