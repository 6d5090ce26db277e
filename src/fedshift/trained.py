"""A finished run as something to predict with, rebuilt from its folder alone.

The method's layers, the global tensors and what every client keeps come back; the data do not.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift import evaluate, files, task
from fedshift.data.in_memory import channels_first
from fedshift.engines.choice import device_of
from fedshift.errors import BadData, BadRun, BadValue, UnknownName
from fedshift.federation import Samples
from fedshift.plan import Plan
from fedshift.resume import plan_of, read_config
from fedshift.tree import Tree, under


@dataclasses.dataclass(frozen=True)
class Trained:
    """The models that a run ended with.

    Args:
        plan: the method and the model built for it.
        model: the global tensors.
        kept: what each client keeps.
        classes: names of the classes; a position is a label.
        source: what the run was trained on.
        folder: the run's.
    """

    plan: Plan
    model: Tree
    kept: Mapping[str, Tree]
    classes: tuple[str, ...]
    source: str = ""
    folder: Path = Path()

    @property
    def metric(self) -> str:
        """What scores are."""
        return self.plan.facts.metric

    @property
    def segments(self) -> bool:
        """Whether it labels pixels."""
        return self.plan.facts.task == "segmentation"

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that trained."""
        return self.plan.facts.clients

    @property
    def personal(self) -> tuple[str, ...]:
        """The clients that have a model of their own."""
        return tuple(c for c in self.clients if _own(self.kept.get(c, {})))

    def predict(self, x: Any, client: str | None = None, unseen: bool = False) -> Tensor:
        """The probability of every class for each input, float [N, classes].

        A run that segments gives one for each pixel, float [N, classes, H, W].

        Args:
            x: raw inputs like those of the training data: images [N, H, W], [N, C, H, W] or
                [N, H, W, C], or vectors [N, D]; uint8 from 0 to 255, or floats as they were.
            client: predict with this client's own model (the global one where it has none).
            unseen: predict for a site that never took part: where clients keep norm layers, it gets
                the mean of theirs with statistics of `x`, so `x` should be many and typical.
        """
        inputs = self._inputs(x)
        tensors, view = self._tensors(inputs, client, unseen)
        found = evaluate.logits(self.plan, tensors, inputs, view)
        return torch.softmax(found.float(), dim=1).cpu()

    def score(self, samples: Any, client: str | None = None, unseen: bool = False) -> float:
        """The mean score, from 0 to 1, on `Samples` or a pair (x, y)."""
        x, y = (samples.x, samples.y) if isinstance(samples, Samples) else samples
        return self.grade(self.predict(x, client, unseen), torch.as_tensor(y))

    def grade(self, probabilities: Tensor, y: Tensor) -> float:
        """The mean score of probabilities against labels."""
        if len(y) != len(probabilities):
            raise BadData(f"there are {len(probabilities)} inputs but {len(y)} labels")
        if y.shape[1:] != probabilities.shape[2:]:
            raise BadData(
                f"labels have shape {list(y.shape)}, but the model labels "
                f"{list(probabilities.shape[:1] + probabilities.shape[2:])}: make them one"
            )
        if y.is_floating_point() or y.is_complex():
            raise BadData(f"labels have type {y.dtype}: give whole numbers from 0")
        low, high = (int(y.min()), int(y.max())) if len(y) else (0, 0)
        if low < 0 or high >= len(self.classes):
            raise BadData(
                f"labels run from {low} to {high}, but the model knows "
                f"{len(self.classes)} classes (0 to {len(self.classes) - 1})"
            )
        return float(task.scores(self.metric, probabilities, y.long()).mean())

    def _inputs(self, x: Any) -> Tensor:
        tensor = torch.as_tensor(x)
        shape = self.plan.facts.shape
        if tensor.dtype == torch.bool or not (
            tensor.dtype == torch.uint8 or tensor.is_floating_point()
        ):
            raise BadData(f"inputs have type {tensor.dtype}: give uint8 (0 to 255) or floats")
        if tensor.ndim > 1 and tuple(tensor.shape[1:]) != shape:
            tensor = channels_first(tensor, "the new data")
        if tensor.ndim < 2 or tuple(tensor.shape[1:]) != shape:
            raise BadData(
                f"inputs have shape {list(tensor.shape[1:])} each, but the model was trained on "
                f"{list(shape)}: resize or convert them"
            )
        if len(tensor) == 0:
            raise BadData("there are no inputs: give at least one")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadData("the inputs hold NaN or infinite values: clean or drop them")
        return tensor

    def _tensors(self, x: Tensor, client: str | None, unseen: bool) -> tuple[Tree, str]:
        """The tensors to predict with, and the view that they are of."""
        if client is not None and unseen:
            raise BadValue("a client and unseen were both given: choose one")
        if unseen:
            return self._for_unseen(x), "global"
        if client is not None:
            if client not in self.clients:
                raise UnknownName("client", client, self.clients)
            own = self.kept.get(client, {})
            if _own(own):
                return evaluate.personal_tensors(self.model, own), "personal"
            if self.plan.own or self.personal:
                raise BadRun(
                    f"{_personal(self.folder, client)} is missing, where '{client}' keeps a model "
                    "of its own: restore it, or write it again with: "
                    f"{files.resuming(self.folder)}"
                )
        elif self.plan.method.view == "personal" and self.personal:
            raise BadValue(
                f"'{self.plan.method.name}' gives every client a model of its own: name one with "
                f"--client ({', '.join(self.personal)}), or take --unseen for a site that never "
                "took part"
            )
        return dict(self.model), "global"

    def _for_unseen(self, x: Tensor) -> Tree:
        if not evaluate.serves_unseen(self.plan):
            norms = evaluate.norm_names(self.plan)
            others = [n for n in self.plan.names("kept") if n in self.plan.used and n not in norms]
            raise BadValue(
                f"'{self.plan.method.name}' leaves no model for a site that never took part: "
                f"clients keep '{others[0]}' to themselves; name a client with --client"
            )
        kept = [self.kept[c] for c in self.clients if c in self.kept]
        return evaluate.for_unseen(self.plan, self.model, kept, x)


def _own(kept: Tree) -> bool:
    """Whether what a client keeps holds tensors of the model."""
    return bool(under("model", kept) or under("tuned", kept))


def load(folder: str | os.PathLike[str], device: str = "auto") -> Trained:
    """The models of a finished run.

    Args:
        folder: the run's folder.
        device: "auto", "cpu", "cuda" or "cuda:N".

    >>> import tempfile, fedshift as fs
    >>> out = tempfile.mkdtemp()
    >>> data, protocol = fs.data.load("shifted-digits"), fs.Protocol(rounds=1, steps=1, batch=8)
    >>> _ = fs.Run(data, "fedavg", protocol, model="mlp", out=out).play()
    >>> fs.load(out).predict(data.clients[0].test.x[:3]).shape
    torch.Size([3, 10])
    """
    folder = Path(folder)
    config = read_config(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise BadRun(
            f"'{folder}' holds no model.safetensors, so its run has not ended: "
            f"end it with: {files.resuming(folder)}"
        )
    where = device_of(device)
    plan = plan_of(config, folder, where, trained=True)
    model, _ = _read(path, folder)
    _check(model, plan, path)
    kept = {}
    for client in plan.facts.clients:
        own = _personal(folder, client)
        if own.is_file():
            tensors, meta = _read(own, folder)
            _check_own(tensors, meta, plan, own, client)
            kept[client] = _moved(tensors, where)
    return Trained(
        plan,
        _moved(model, where),
        kept,
        tuple(config["facts"]["classes"]),
        config["source"].get("data", ""),
        folder,
    )


def _personal(folder: Path, client: str) -> Path:
    return folder / "personal" / f"{client}.safetensors"


def _read(path: Path, folder: Path) -> tuple[Tree, dict[str, Any]]:
    try:
        return files.load_tensors(path)
    except BadRun as error:
        what = str(error).rpartition(": ")[0]  # that remedy is for checkpoints
        raise BadRun(f"{what}: write it again with: {files.resuming(folder)}") from None


def _check(model: Tree, plan: Plan, path: Path) -> None:
    """Refuse tensors that are not those of the model."""
    wanted = {n: tuple(t.shape) for n, t in plan.tensors.items()}
    found = {n: tuple(t.shape) for n, t in model.items()}
    if wanted != found:
        wrong = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
        raise BadRun(
            f"{path} does not fit the model of its config.toml (first difference: '{wrong[0]}'): "
            "the model's or method's code has changed, or the file is of another run"
        )


def _check_own(tensors: Tree, meta: Mapping[str, Any], plan: Plan, path: Path, client: str) -> None:
    """Refuse what another client, another method or another model keeps."""
    model = {n: t.shape for n, t in plan.tensors.items()}
    fits = all(t.shape == model.get(n) for n, t in under("model", tensors).items())
    if not fits or (meta.get("client"), meta.get("method")) != (client, plan.method.name):
        raise BadRun(
            f"{path} is not what '{client}' keeps in this run: restore it, or write it again with: "
            f"{files.resuming(path.parent.parent)}"
        )


def _moved(tensors: Tree, device: torch.device) -> Tree:
    return {n: t.to(device) for n, t in tensors.items()}
