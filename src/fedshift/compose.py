"""Several methods as one.

Builds run in order, the strictest scope wins, loss terms add, phases of one name fuse, corrections
chain. What only one method can have (a replaced gradient, client weights, a server step, a rule for
one tensor, the task's loss) is refused for two, naming both. Every method's state, uploads and
draws live under its own name, so methods never see each other's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedshift import keys
from fedshift.errors import BadValue, CannotCombine
from fedshift.federation import Facts
from fedshift.method import (
    SHARES,
    Ctx,
    Data,
    Method,
    Objective,
    Phase,
    Report,
    Scope,
    Stage,
    State,
    Uploads,
    overrides,
)
from fedshift.protocol import Protocol
from fedshift.tree import Tree, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output

_ONLY_ONE = {
    "gradient": "replace the gradient",
    "weights": "weight the clients",
    "element_weights": "weight single elements",
    "server_step": "replace the server's step",
    "predict": "replace the prediction",
}
_TAKEN = ("model", "optimizer", "tuned")  # what else has a place in what a client keeps


@dataclasses.dataclass(frozen=True)
class Composed:
    """Methods in order, called as one. `Composed.of(FedProx(), Mixup())`, or `FedProx() + Mixup()`.

    Server states are `{method name: State}`; trees carry names "method/name".
    """

    parts: tuple[Method, ...]

    @classmethod
    def of(cls, *methods: Method | Composed) -> Composed:
        """Combine methods, or refuse with the names of the two that cannot go together."""
        parts: list[Method] = []
        for m in methods:
            parts += m.parts if isinstance(m, Composed) else (m,)
        # FedAvg changes nothing: beside others it would only lengthen the name
        rest = [p for p in parts if p.name != Method.name or _changes(p)]
        composed = cls(tuple(rest or parts[:1]))
        composed._check()
        return composed

    def __add__(self, other: Method | Composed) -> Composed:
        return Composed.of(self, other)

    def _check(self) -> None:
        names = [p.name for p in self.parts]
        for part, name in zip(self.parts, names):
            if (name == Method.name and _changes(part)) or name in _TAKEN or set(name) & set("/+"):
                raise BadValue(
                    f"method class '{type(part).__name__}' is named '{name}', which cannot be: "
                    "give it a `name: ClassVar[str]` of its own, in letters, digits and dashes"
                )
            if names.count(name) > 1:
                raise CannotCombine(f"'{name}' stands twice in '{self.name}': name it once")
        for hook, deed in _ONLY_ONE.items():
            claim = [p.name for p in self.parts if overrides(p, hook)]
            if len(claim) > 1:
                raise CannotCombine(
                    f"'{claim[0]}' and '{claim[1]}' both {deed}: use one of them at a time"
                )
        for part in self.parts if self.pooled else ():
            alone = next(p.name for p in self.parts if p.pooled)
            server = [h for h in ("server_step", "after", "broadcast") if overrides(part, h)]
            if server or part.view == "personal":
                need = "needs a server" if server else "gives every client a model of its own"
                raise CannotCombine(
                    f"'{alone}' and '{part.name}' cannot be combined: '{part.name}' {need}, "
                    "and one party holds all data"
                )

    # -- what the whole is ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The names joined as on the command line."""
        return "+".join(p.name for p in self.parts)

    @property
    def view(self) -> str:
        """Which model the scores are of: personal as soon as one method says so."""
        return "personal" if any(p.view == "personal" for p in self.parts) else "global"

    @property
    def stackable(self) -> bool:
        """Whether every part can run stacked."""
        return all(p.stackable for p in self.parts)

    @property
    def pooled(self) -> bool:
        """Whether training happens on everybody's data at one place."""
        return any(p.pooled for p in self.parts)

    def taps(self, stages: tuple[str, ...]) -> tuple[str, ...]:
        """The stages whose outputs any part's loss looks at."""
        wanted = {t for p in self.parts for t in p.taps}
        return tuple(s for s in stages if s in wanted or "*" in wanted)

    @property
    def scores_trained(self) -> bool:
        """Whether personal scores are of models as they left training."""
        return any(p.scores_trained for p in self.parts)

    def content(self, name: str) -> str:
        """What an upload or payload "part/name" is: parameters, statistics, averaged data, …"""
        owner, _, rest = name.partition("/")
        for part in self.parts:
            for start, kind in part.content.items() if part.name == owner else ():
                if rest.startswith(start):
                    return kind
        return "parameters"

    def check_task(self, task: str) -> None:
        """Refuse a task that a part cannot learn.

        >>> from fedshift.methods import make
        >>> make("fedprox+feddecorr").check_task("segmentation")
        Traceback (most recent call last):
        fedshift.errors.BadValue: 'feddecorr' needs one label a sample and learns classification, \
not segmentation: choose a method without it, such as fedbn or fedfa
        """
        for part in self.parts:
            if task not in part.tasks:
                raise BadValue(
                    f"'{part.name}' needs one label a sample and learns "
                    f"{' and '.join(part.tasks)}, not {task}: choose a method without it, such as "
                    "fedbn or fedfa"
                )

    def has(self, hook: str) -> bool:
        """Whether any part has its own version of a hook."""
        return any(overrides(p, hook) for p in self.parts)

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Every part builds on what the former ones built."""
        for part in self.parts:
            model = part.build(model, facts)
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The strictest share; the one group that differs from "model"."""
        scopes = [(p.name, p.scope(name, module)) for p in self.parts]
        share = max((s.share for _, s in scopes), key=SHARES.index)
        shares = {s.share for _, s in scopes}
        if {"up", "down"} <= shares:
            share = "kept"
        groups = {s.group: owner for owner, s in scopes if s.group != "model"}
        if len(groups) > 1:
            a, b = list(groups.values())[:2]
            raise CannotCombine(
                f"'{a}' and '{b}' both want to train '{name}' in a group of their own"
            )
        return Scope(share, next(iter(groups), "model"))

    def init_server(self, params: Tree, facts: Facts) -> dict[str, State]:
        """Each part's server state by its name."""
        return {p.name: p.init_server(params, facts) for p in self.parts}

    def init_client(self, params: Tree, facts: Facts) -> State:
        """All parts' kept state, under their names."""
        return _joined((p.name, p.init_client(params, facts)) for p in self.parts)

    def phases(self) -> tuple[Phase, ...]:
        """The phases that parts declare; those of one name fuse into the one declared first."""
        fused: dict[str, tuple[str, Phase]] = {}
        for part in self.parts:
            for phase in part.phases() if overrides(part, "phases") else ():
                if phase.name in fused:
                    owner, before = fused[phase.name]
                    phase = _fuse(owner, before, part.name, phase)
                fused[phase.name] = (part.name, phase)
        return tuple(phase for _, phase in fused.values()) or (Phase(),)

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """The parts' stages: those before training, training, those after it."""
        found: dict[str, tuple[str, Stage]] = {}
        before: list[Stage] = []
        behind: list[Stage] = []
        for part in self.parts:
            side = before
            for stage in part.stages(protocol) if overrides(part, "stages") else ():
                owner, known = found.setdefault(stage.name, (part.name, stage))
                if known != stage:
                    raise CannotCombine(
                        f"'{owner}' and '{part.name}' both declare the stage '{stage.name}', "
                        "in different ways"
                    )
                if stage.name == "train":
                    side = behind
                elif owner == part.name:
                    side.append(stage)
        _, train = found.get("train", ("", Stage("train", protocol.rounds)))
        return (*before, train, *behind)

    # -- server --------------------------------------------------------------------------------

    def broadcast(self, server: dict[str, State], client: str, round: int) -> State:
        """All parts' payloads for one client."""
        return _joined((p.name, p.broadcast(server[p.name], client, round)) for p in self.parts)

    def weights(self, uploads: Uploads, server: dict[str, State]) -> Tensor | None:
        """The weights of the one part that has its own."""
        for part in self.parts:
            if overrides(part, "weights"):
                return part.weights(self._own(part, uploads), server[part.name])
        return None

    def combine(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """The rule of the one part that has one for this tensor of the model."""
        found: Tensor | None = None
        owner = ""
        for part in self.parts:
            value = part.combine(name, stacked, weights) if overrides(part, "combine") else None
            if value is not None and found is not None:
                raise CannotCombine(f"'{owner}' and '{part.name}' both combine '{name}'")
            if value is not None:
                found, owner = value, part.name
        return found

    def element_weights(self, name: str, uploads: Uploads) -> Tensor | None:
        """The weights of the one part that has its own."""
        for part in self.parts:
            if overrides(part, "element_weights"):
                return part.element_weights(name, self._own(part, uploads))
        return None

    def combine_extra(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """The rule of the part whose upload "part/name" is."""
        owner, _, rest = name.partition("/")
        part = next(p for p in self.parts if p.name == owner)
        return part.combine_extra(rest, stacked, weights)

    def server_step(
        self, old: Tree, new: Tree, server: dict[str, State]
    ) -> tuple[Tree, dict[str, State]]:
        """The step of the one part that has its own."""
        for part in self.parts:
            if overrides(part, "server_step"):
                new, state = part.server_step(old, new, server[part.name])
                server = {**server, part.name: state}
        return new, server

    def after(
        self, new: Tree, uploads: Uploads, server: dict[str, State], net: Net, key: int
    ) -> tuple[Tree, dict[str, State]]:
        """Every part in order."""
        for part in self.parts:
            if overrides(part, "after"):
                own = self._own(part, uploads)
                here = keys.fold(key, part.name)
                new, state = part.after(new, own, server[part.name], net.at(new), here)
                server = {**server, part.name: state}
        return new, server

    # -- client --------------------------------------------------------------------------------

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """All parts' fixed tensors."""
        fixed: Tree = {}
        for part in self.parts:
            if overrides(part, "start"):
                fixed |= with_prefix(part.name, part.start(self._mine(part, ctx), net, data))
        return fixed

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Every part changes the batch in turn."""
        for part in self.parts:
            if overrides(part, "batch"):
                x, y = part.batch(x, y, self._mine(part, ctx))
        return x, y

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The union of all terms; one part at most replaces the task's."""
        terms: dict[str, Tensor] = {}
        owner: dict[str, str] = {}
        for part in self.parts:
            if not overrides(part, "loss"):
                continue
            for name, value in part.loss(out, y, self._mine(part, ctx), net).items():
                if name in terms:
                    raise CannotCombine(
                        f"'{owner[name]}' and '{part.name}' both give the loss term '{name}'"
                    )
                terms[name], owner[name] = value, part.name
        return terms

    def gradient(self, loss: Objective, params: Tree, ctx: Ctx) -> Tree:
        """The gradient of the one part that replaces it."""
        for part in self.parts:
            if overrides(part, "gradient"):
                return part.gradient(loss, params, self._mine(part, ctx))
        return loss.grad(params)

    def correct(self, grads: Tree, params: Tree, ctx: Ctx) -> Tree:
        """Corrections chained in order."""
        for part in self.parts:
            if overrides(part, "correct"):
                grads = part.correct(grads, params, self._mine(part, ctx))
        return grads

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """All parts' reports, under their names."""
        whole = Report({}, {}, {}, {})
        for part in self.parts:
            if not overrides(part, "report"):
                continue
            own = part.report(self._mine(part, ctx), net, data)
            for field in dataclasses.fields(Report):
                getattr(whole, field.name).update(with_prefix(part.name, getattr(own, field.name)))
        return whole

    def predict(self, net: Net, x: Tensor, view: str) -> Tensor:
        """The prediction of the one part that has its own."""
        for part in self.parts:
            if overrides(part, "predict"):
                return part.predict(net, x, view)
        return net(x)

    # -- each part sees only what is its own ---------------------------------------------------

    @staticmethod
    def _mine(part: Method, ctx: Ctx) -> Ctx:
        return ctx.replace(
            received=under(part.name, ctx.received),
            kept=under(part.name, ctx.kept),
            fixed=under(part.name, ctx.fixed),
            key=keys.fold_in(ctx.key, part.name),
        )

    @staticmethod
    def _own(part: Method, uploads: Uploads) -> Uploads:
        return dataclasses.replace(
            uploads,
            extras=under(part.name, uploads.extras),
            combined=under(part.name, uploads.combined),
        )


def _changes(part: Method) -> bool:
    """Whether a method does anything that FedAvg does not."""
    hooks = [n for n, v in vars(Method).items() if callable(v) and not n.startswith("_")]
    return part.pooled or any(overrides(part, hook) for hook in hooks)


def _joined(states: Iterable[tuple[str, State]]) -> State:
    tensors: Tree = {}
    numbers: dict[str, int | float] = {}
    for owner, state in states:
        tensors |= with_prefix(owner, state.tensors)
        numbers |= {f"{owner}/{name}": value for name, value in state.numbers.items()}
    return State(tensors, numbers)


def _fuse(first: str, a: Phase, second: str, b: Phase) -> Phase:
    """One phase from two of the same name: groups and terms add, the rest must agree.

    A plain phase, which says nothing but its name, agrees with any other.
    """
    for field in ("sign", "every", "offset", "together", "lr", "optimizer"):
        if getattr(a, field) != getattr(b, field) and Phase(a.name) not in (a, b):
            raise CannotCombine(
                f"'{first}' and '{second}' both declare the phase '{a.name}', "
                f"with different {field}"
            )
    return dataclasses.replace(
        a if b == Phase(b.name) else b,
        groups=tuple(dict.fromkeys(a.groups + b.groups)),
        terms=tuple(dict.fromkeys(a.terms + b.terms)),
        train_mode=tuple(dict.fromkeys(a.training + b.training)),
    )
