"""A site's half: it answers the server's messages, on its own data, and keeps its own state.

A site rebuilds the run from the configuration that comes with every message: names and numbers, no
objects. Its keys follow from the run's seed and its own name. What it keeps lies in its state
folder, so that a site that was restarted goes on. Nothing is saved before the answer is whole, and
nothing leaves that its policy does not allow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift import aggregate, evaluate, files, keys
from fedshift._version import __version__
from fedshift.engines.choice import device_of
from fedshift.engines.flower import codec, policy
from fedshift.engines.flower.codec import ECHO, Like, Message, Packet, Rejected
from fedshift.engines.flower.secagg.identity import Identity
from fedshift.engines.flower.secagg.layout import layout
from fedshift.engines.flower.secagg.member import NOBODY, Member
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.engines.flower.shelf import Shelf
from fedshift.engines.loop import Loop
from fedshift.errors import BadData, BadRun, FedshiftError
from fedshift.federation import Client, Federation
from fedshift.method import Stage, State
from fedshift.plan import Plan, precision
from fedshift.resume import plan_of
from fedshift.tree import Tree, digest, pick, under, with_prefix
from fedshift.trip import Job


@dataclasses.dataclass
class _Built:
    """A run as a site has rebuilt it."""

    plan: Plan
    seed: int
    initial: Tree
    loop: Loop


class Site:
    """One party.

    Args:
        name: as the server knows it.
        data: gives the federation that the site's own data are in.
        state: the folder for what it keeps.
        allow: the kinds of content that may leave (None: all).
        device: where it computes.
        require_secure: what it uploads must be summed under masks.
        identity: its own key and the other sites', for secure aggregation.
        pretrained: its copy of the weights that a run may begin with (None: it is where the run's
            description says).
    """

    def __init__(
        self,
        name: str,
        data: Callable[[], Federation],
        state: Path,
        allow: Sequence[str] | None = None,
        device: str = "cpu",
        require_secure: bool = False,
        identity: Identity = NOBODY,
        pretrained: Path | None = None,
    ) -> None:
        self._pretrained = pretrained
        self._identity = identity
        self._require_secure = require_secure
        self.name = name
        self.state = state
        self.allow = None if allow is None else tuple(allow)
        self._device = device_of(device)
        self._load = data
        self._data: tuple[Federation, Client] | None = None
        self._built: tuple[str, _Built] | None = None

    def answer(self, packet: Packet) -> Packet:
        """The answer to a packet; what goes wrong is said in it, in one line."""
        head: dict[str, Any] = {}
        try:
            head = codec.head_of(packet)
            with precision((head.get("config") or {}).get("dtype", "float32")):
                found = self._answer(head, packet)
        except FedshiftError as error:
            found = Message({"kind": "failed", "why": _line(str(error))})
        except Exception as error:
            found = Message({"kind": "failed", "why": _line(f"{type(error).__name__}: {error}")})
        echo = {n: head[n] for n in ECHO if n in head}
        return codec.encode(Message({**found.head, **echo, "site": self.name}, found.tensors))

    def _answer(self, head: Mapping[str, Any], packet: Packet) -> Message:
        kind = head.get("kind")
        if kind == "describe":
            return Message({"kind": "describe", **self.describe()})
        if kind in ("trip", "final"):
            whole = self._rebuilt(head["config"])
            message = codec.decode(packet)
            model = self._received(whole, message.tensors)
            shelf = Shelf(self.state, head["run"])
            if kind == "final":
                return self._final(whole, head, model, shelf)
            return self._trip(whole, head, model, message.tensors, shelf)
        if kind in ("share", "mask", "unmask"):
            step: Message = getattr(self._member(Shelf(self.state, head["run"])), kind)(head)
            return step
        raise Rejected(f"the server asks for '{kind}', which this version does not know")

    # -- what the site is ----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What the server must know of the data before a run: facts and numbers, no sample."""
        policy.check(self.allow, "statistics", "its numbers of samples")
        federation, client = self._own()
        return {
            "version": __version__,
            "task": federation.task,
            "metric": federation.metric,
            "classes": list(federation.classes),
            "shape": list(client.train.x.shape[1:]),
            "type": str(client.train.x.dtype).removeprefix("torch."),
            "pipeline": federation.pipeline.to_config(),
            "train": len(client.train),
            "val": len(client.val),
            "test": len(client.test),
        }

    def _own(self) -> tuple[Federation, Client]:
        if self._data is None:
            federation = self._load()
            found = federation.clients
            if len(found) > 1 or found[0].name == self.name:
                client = federation[self.name]
            else:
                client = dataclasses.replace(found[0], name=self.name)
            if not len(client.train):
                raise BadData(f"site '{self.name}' has no training data: give it some")
            self._data = federation, client
        return self._data

    def _rebuilt(self, config: Mapping[str, Any]) -> _Built:
        text = json.dumps(config, sort_keys=True)
        if self._built is None or self._built[0] != text:
            federation, client = self._own()
            plan = plan_of(self._with_weights(config), self.state, self._device)
            if self.name not in plan.facts.clients:
                raise Rejected(f"the run knows no site '{self.name}'")
            if list(federation.classes) != config["facts"]["classes"]:
                raise Rejected("the run's classes are not those of this site's data")
            initial = {n: t.detach().clone() for n, t in plan.tensors.items()}
            built = _Built(plan, config["seed"], initial, Loop(plan, [client.train]))
            self._built = text, built
        return self._built[1]

    def _with_weights(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration with this site's copy of the weights that the run begins with."""
        network = config["network"]
        if not network.get("pretrained"):
            return config
        path = self._pretrained or Path(network["pretrained"])
        if not path.is_file():
            raise BadRun(
                f"the run begins with the weights of a file, and site '{self.name}' has no "
                f"{path.name}: get it from the server, and name it in the site's file (pretrained)"
            )
        return {**config, "network": {**network, "pretrained": str(path)}}

    # -- a round -------------------------------------------------------------------------------

    def _trip(
        self, whole: _Built, head: Mapping[str, Any], model: Tree, tensors: Tree, shelf: Shelf
    ) -> Message:
        plan = whole.plan
        _, client = self._own()
        secure = _secure(head)
        if head["work"] and _stage(plan, head["stage"]).program == "train":
            policy.check_model(plan, plan.up, self.allow)
            self._check_secure(secure)
        kept = self._kept(whole, head["state"], shelf)
        anew = kept is None
        if kept is None:
            if head["handouts"] > len(head["again"]):
                return Message({"kind": "lost"})  # the server has more than this round's for us
            kept = aggregate.begin_client(plan, whole.initial)
        for k, old in enumerate(head["again"]):
            state = _state(under(f"again/{k}", tensors))
            kept = self._play(whole, old["stage"], old["round"], head["lr"], state, model, kept)[0]
        found: dict[str, Any] = {"kind": "trip", "samples": len(client.train), "anew": anew}
        if head["final"]:
            self._final(whole, head, model, shelf)
        if head["score"]:
            score = evaluate.evaluate(plan, model, {self.name: kept}, [client])[0]
            numbers = dataclasses.asdict(score)
            found["scores"] = {n: v for n, v in numbers.items() if n not in ("client", "role")}
        up: Tree = {}
        if head["work"]:
            state = _state(tensors)
            kept, up, kinds, told = self._play(
                whole, head["stage"], head["round"], head["lr"], state, model, kept
            )
            found |= told
            if up:
                self._check_secure(secure)
            if secure is not None:
                up, offered = self._offered(plan, head, model, up, kinds, secure, shelf)
                found |= offered
            shelf.save(head["exchange"] + 1, kept)
        shelf.hold({*head["hold"], head["state"], head["exchange"] + 1})
        return Message(found, up)

    def _play(
        self,
        whole: _Built,
        stage_name: str,
        round: int,
        lr: float,
        payload: State,
        model: Tree,
        kept: Tree,
    ) -> tuple[Tree, Tree, dict[str, str], dict[str, Any]]:
        """One trip: what is kept, what goes up and of which kinds, and what is said of it."""
        plan = whole.plan
        stage = _stage(plan, stage_name)
        n = len(self._own()[1].train)
        job = Job(
            client=self.name,
            stage=stage,
            round=round,
            lr=lr,
            key=keys.fold(whole.seed, "client", self.name, stage.name, round),
            payload=_on(payload, plan.device),
            model=model,
            kept={name: t.to(plan.device) for name, t in kept.items()},
            place=0,
            samples=n,
            steps=stage.steps(plan.protocol, n),
        )
        result = whole.loop.play([job])
        up = {
            **with_prefix("model", {n: t[0] for n, t in result.model.items()}),
            **with_prefix("extra", {n: t[0] for n, t in result.extras.items()}),
        }
        policy.check_uploads(plan, under("extra", up), self.allow)
        losses = {n: _number(float(t[0])) for n, t in result.losses.items()}
        told = {"losses": losses, "seconds": result.seconds[0]}
        return result.kept[0], up, result.kinds, told

    def _member(self, shelf: Shelf) -> Member:
        return Member(self.name, shelf.folder, self._identity)

    def _check_secure(self, secure: Secure | None) -> None:
        if self._require_secure and secure is None:
            raise policy.Refused(
                "the site's policy demands secure aggregation, and in this run the server would "
                "see each upload: let it have [secure], or lift require_secure"
            )

    def _offered(
        self,
        plan: Plan,
        head: Mapping[str, Any],
        model: Tree,
        up: Tree,
        kinds: Mapping[str, str],
        secure: Secure,
        shelf: Shelf,
    ) -> tuple[Tree, dict[str, Any]]:
        """What goes in clear of an upload, and what is offered of the rest, which waits here."""
        whole = layout(plan, {n: Like.of(t) for n, t in up.items()}, kinds)
        weight = 1 if plan.protocol.weights == "uniform" else len(self._own()[1].train)
        numbers = whole.numbers(up, model, secure, weight)
        began = {n: str(head[n]) for n in ("config", "stage", "round", "lr", "secure")}
        origin = sha256(json.dumps([digest(pick(model, plan.down)), began]).encode()).hexdigest()
        offer = self._member(shelf).offer(head, numbers, origin)
        return pick(up, whole.clear), {"keys": offer, "layout": whole.digest}

    def _received(self, whole: _Built, tensors: Tree) -> Tree:
        """The model as the server holds it, as far as this site may know it."""
        got = under("model", tensors)
        plan = whole.plan
        expected = {n: Like.of(whole.initial[n]) for n in plan.down}
        if {n: Like.of(t) for n, t in got.items()} != expected:
            raise Rejected("the server's model is not that of the run: run one version everywhere")
        owners = {p.name for p in plan.method.parts}
        for name in (n for n in tensors if not n.startswith("model/")):
            rest = (
                name.partition("/")[2] if not name.startswith("again/") else name.split("/", 3)[3]
            )
            if rest.partition("/")[0] not in owners:
                raise Rejected(f"the server sends '{name[:60]}', which no method of the run asks")
        return {**whole.initial, **{n: t.to(plan.device) for n, t in got.items()}}

    def _kept(self, whole: _Built, version: int, shelf: Shelf) -> Tree | None:
        """The state after so many rounds (None: it is lost)."""
        if version == 0:
            return aggregate.begin_client(whole.plan, whole.initial)
        return shelf.load(version)

    # -- the end -------------------------------------------------------------------------------

    def _final(self, whole: _Built, head: Mapping[str, Any], model: Tree, shelf: Shelf) -> Message:
        """Write the models that the run ended with, as a folder that `fedshift.load` reads."""
        config = head["config"]
        meta = {"method": config["method"], "model": config["model"]}
        files.write_toml(shelf.folder / "config.toml", config)
        files.save_tensors(shelf.folder / "model.safetensors", model, meta)
        kept = self._kept(whole, head["state"], shelf)
        if kept:
            path = shelf.folder / "personal" / f"{self.name}.safetensors"
            files.save_tensors(path, kept, {**meta, "client": self.name})
        with contextlib.suppress(OSError):
            shelf.hold({head["state"]})
        return Message({"kind": "final"})


def _secure(head: Mapping[str, Any]) -> Secure | None:
    """How uploads are summed (None: they are not)."""
    given = head.get("secure")
    return None if given is None else Secure(clip=given["clip"], bits=given["bits"])


def _stage(plan: Plan, name: str) -> Stage:
    for stage in plan.method.stages(plan.protocol):
        if stage.name == name:
            return stage
    raise Rejected(f"the server asks for the stage '{name[:60]}', which the method does not have")


def _state(tensors: Tree) -> State:
    """A payload from "payload/…" (tensors) and "number/…" (numbers, as tensors of one)."""
    numbers = {n: t.item() for n, t in under("number", tensors).items()}
    return State(under("payload", tensors), numbers)


def _on(state: State, device: torch.device) -> State:
    tensors: dict[str, Tensor] = {n: t.to(device) for n, t in state.tensors.items()}
    return State(tensors, state.numbers)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _line(text: str, most: int = 300) -> str:
    return " ".join(text.split())[:most]
