"""FedBR (Guo, Tang and Lin, ICML 2023): pseudo-data against the bias of local learning.

## The idea

A client with few classes learns to predict only those, and its features leave everybody else's.
All clients therefore share a handful of pseudo-data: means of ten images each, which show nobody
and belong to no class. Component 1 asks for undecided predictions on them. Component 2 trains a
projection head to expose how far a client's features of the pseudo-data have gone from the received
extractor's, and then trains the extractor to close what the head exposed.

## The loss

With the extractor f, the classifier g, the head P, the pseudo-data x_p and the received extractor
f_g, rows paired by position, each local step goes *up* with P alone, then *down* with f and g:

    L_con = mean softplus(s2 - s1),  s1 = tau1 cos(P(f(x_p)), P(f_g(x_p))),
                                     s2 = tau2 cos(P(f(x_p)), P(f(x)))
    up:    P on L_con
    down:  f, g on CE(g(f(x)), y) + mu L_con + lam CE(g(f(x_p)), q)

q is uniform for means of the clients' own data (RSM). Mixture starts from means of public data and
blends each with K samples of the batch at every step, (x_p + sum x_k) / (K + 1), and q likewise.
`mu=0` leaves component 1, `lam=0` component 2; `max_step=False` leaves the head as it started.

## When to use it

When clients lack classes and also look different. Component 1 alone about doubles the time of a
step, the whole takes four times FedAvg's or more. It combines with Mixup, FedProx, FedCM, FedDecorr
and FedNTD. Classification only.

## What crosses the wire

Beside model and head: before training, every client sends its share of the pseudo-data (RSM), and
gets all of them back to keep. With `every="round"`, this happens in each round. Means of ten images
of one client are less than its images, but they are made of them, and a client all of whose images
look alike hides little. Mixture sends nothing of the clients up.

## Differences from the released code

* Temperatures multiply, as in the code; the paper prints a division, under which its own
  experiments with tau2 = 0 are impossible. `temperature="divide"` is the printed one.
* The paper lets every client give as many means as any other, the code draws a client for each:
  `donors="uniform"` (or "samples": by amount of data). Then each client sends a full set.
* `head="released"` is the code's head, with layers twice as wide as the features; the paper's has
  256, 256 and 128 units.
* The paper's networks have no batch norm. Where there is one, pseudo-data enter running statistics,
  as in the code: they are of all clients, and the global model gains by it under feature shift.
  `pseudo_mode="apart"` keeps them out; training itself is the same.
* The received extractor looks at the same blend as the trained one (Mixture); the code holds on to
  what it saw in the first step. Public data are normalised as the clients' are; the code does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.data.in_memory import inputs
from fedshift.errors import BadData, BadValue, CannotCombine
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Phase, Report, Scope, Stage, State, Uploads
from fedshift.methods.mixup import soft
from fedshift.parts import contrast, pseudo
from fedshift.protocol import Protocol
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output

HEAD = "fedbr_projector"
UP = "fedbr-max"  # the phase in which the head exposes the gap
COLLECT, SEND = "fedbr-collect", "fedbr-send"


@dataclass(frozen=True)
class FedBR(Method):
    """Undecided on pseudo-data, and a min-max game over the drift of features.

    >>> FedBR(mu=0).phases()  # component 1 alone needs no game
    (Phase(name='model', groups=('model',), terms=('*',), sign=1.0, every=1, offset=0, \
together=False, train_mode=None, lr=None, optimizer=None),)
    """

    name: ClassVar[str] = "fedbr"
    paper: ClassVar[str] = (
        "Guo et al., FedBR: Improving Federated Learning on Heterogeneous Data via Local Learning "
        "Bias Reduction, ICML 2023"
    )
    content: ClassVar[dict[str, str]] = {"pseudo": "averaged data", "means": "averaged data"}

    mu: float = hp(0.5, "weight of the contrastive term, component 2 (mu)", low=0, off=0.0)
    lam: float = hp(1.0, "weight of undecided predictions, component 1 (lambda)", low=0, off=0.0)
    tau1: float = hp(2.0, "temperature of the pull to the received features (tau_1)", low=0)
    tau2: float = hp(2.0, "temperature of the push off local features (tau_2; 0: no push)", low=0)
    temperature: str = hp(
        "multiply", "what temperatures do to similarities", choices=contrast.MODES
    )
    head: str = hp(
        "paper", "the projection head, or none of it", choices=("paper", "released", "none")
    )
    max_step: bool = hp(True, "train the head to expose the gap, instead of leaving it as it is")
    source: str = hp("rsm", "means of clients' data, or of public data", choices=("rsm", "mixture"))
    proxy: str = hp("", "an .npz file with public inputs under the name x (Mixture)")
    mix: int = hp(1, "samples of the batch in each blend of the Mixture (K)", low=0)
    every: str = hp("once", "when pseudo-data are made", choices=("once", "round"))
    size: int = hp(32, "pseudo-data in all", low=1, quick=6)
    mean_of: int = hp(10, "samples in the mean that makes one of them", low=1)
    donors: str = hp(
        "even", "whose data the means are of (RSM)", choices=("even", "uniform", "samples")
    )
    pseudo_mode: str = hp(
        "train", "whether pseudo-data move running statistics", choices=("train", "apart")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau1", "tau2"):
            contrast.check_temperature(getattr(self, name), self.temperature, f"fedbr.{name}")
        if (self.source == "mixture") != bool(self.proxy):
            raise BadValue(
                f"fedbr.source is '{self.source}' and fedbr.proxy is '{self.proxy}': Mixture, and "
                "nothing else, needs public data; give source=mixture and proxy=FILE.npz together"
            )

    @property
    def _idle(self) -> bool:
        return self.mu == 0 and self.lam == 0

    @property
    def _plays(self) -> bool:
        """Whether the head is trained against the extractor."""
        return self.mu > 0 and self.max_step and self.head != "none"

    @property
    def _blends(self) -> bool:
        """Whether pseudo-data change at every step."""
        return self.source == "mixture" and self.mix > 0

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach the projection head."""
        if facts.task != "classification":
            raise BadData(f"fedbr learns classification, not {facts.task}: choose another method")
        if self.mu > 0 and self.head != "none":
            model.add_module(HEAD, projector(facts.width, self.head))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The head travels like the model, trained by a phase of its own or by none."""
        if not name.startswith(f"{HEAD}."):
            return Scope()
        return Scope(group=HEAD if self._plays else "frozen")

    def phases(self) -> tuple[Phase, ...]:
        """The head up, then the model down."""
        if not self._plays:
            return (Phase(),)
        return (Phase(UP, (HEAD,), ("gap",), sign=-1.0, train_mode=(HEAD, "model")), Phase())

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Collect the pseudo-data, and where they stay the same, send them once."""
        train = (Stage("train", protocol.rounds),)
        if self._idle:
            return train
        collect, send = (Stage(n, 1, "collect", everyone=True) for n in (COLLECT, SEND))
        return (collect, send, *train) if self.every == "once" else (collect, *train)

    # -- server: make the pseudo-data, hold them until they are with the clients ---------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Nothing yet; public data that do not fit are refused before anybody trains."""
        if self.proxy:
            found = inputs(self.proxy)
            if tuple(found.shape[1:]) != facts.shape:
                raise BadData(
                    f"{self.proxy} holds samples of shape {tuple(found.shape[1:])}, and the "
                    f"clients' have {facts.shape}: resize them to one shape"
                )
        return State()

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The pseudo-data that are not with the client yet."""
        return server

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Make the pseudo-data; once sent, what stays the same is not sent again."""
        if not self._asks(uploads.stage):
            return new, State() if self.every == "once" else server
        like = next(t for t in new.values() if t.is_floating_point())
        draw = keys.as_tensor(key, like.device)
        if self.proxy:
            made = pseudo.means_at(inputs(self.proxy), draw, self.size, self.mean_of, like.dtype)
            return new, State({"pseudo": made})
        by_name = sorted(range(len(uploads.clients)), key=uploads.clients.__getitem__)
        means = torch.stack([uploads.extras["means"][k] for k in by_name])
        amounts = torch.stack([uploads.samples[k] for k in by_name])
        weights = {"even": None, "uniform": torch.ones_like(amounts), "samples": amounts}
        return new, State({"pseudo": pseudo.pooled(means, draw, self.size, weights[self.donors])})

    def _asks(self, stage: str) -> bool:
        """Whether pseudo-data are made in a stage."""
        return stage == COLLECT or (stage == "train" and self.every == "round" and not self._idle)

    # -- client --------------------------------------------------------------------------------

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Means of own data; and the pseudo-data that came, to keep."""
        if ctx.stage == SEND:
            return Report(keep={"pseudo": ctx.received["pseudo"]})
        if self.proxy or not self._asks(ctx.stage):
            return Report()
        clients = len(ctx.facts.clients)
        givers = clients if ctx.stage == COLLECT else ctx.protocol.participants(clients)
        count = -(-self.size // givers) if self.donors == "even" else self.size
        key = keys.fold_in(ctx.key, "means")
        shape, dtype = ctx.facts.shape, ctx.lr.dtype
        means = pseudo.means_of(data, ctx.samples, shape, key, count, self.mean_of, dtype)
        return Report(individual={"means": means})

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """The pseudo-data as the network takes them, and the received extractor's features."""
        held = {**ctx.kept, **ctx.received}
        if ctx.stage in (COLLECT, SEND) or "pseudo" not in held:
            return {}
        x = held["pseudo"]
        if self.proxy:
            x = ctx.facts.pipeline(x, None, x.dtype)
        # What the received extractor says stays the same, unless x or batch statistics change it.
        stays = self.mu > 0 and not self._blends and not net.buffers
        return {"pseudo": x, "anchor": net.features(x)} if stays else {"pseudo": x}

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The gap, going up; the gap and the undecided predictions, going down."""
        if self._idle or ctx.phase not in (UP, "model"):
            return {}
        if "pseudo" not in ctx.fixed:
            raise CannotCombine(
                f"fedbr has no pseudo-data yet in the stage '{ctx.stage}': name it before the "
                "method that this stage belongs to"
            )
        x, q = self._pseudo(out.x, y, ctx)
        if ctx.phase == UP:  # a look at the extractor, which does not learn here
            still = net.aside()
            return {"gap": self._gap(x, still.features(x), still.features(out.x), ctx, net)}
        shown = net.aside() if self.pseudo_mode == "apart" else net
        z, terms = shown.features(x), {}
        if self.mu:
            terms["contrast"] = self.mu * self._gap(x, z, out.z, ctx, net)
        if self.lam:
            terms["undecided"] = self.lam * F.cross_entropy(shown.head(z), q)
        return terms

    def _pseudo(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """The pseudo-data of this step, and their labels."""
        base, classes = ctx.fixed["pseudo"], ctx.facts.classes
        q = base.new_full((len(base), classes), 1.0 / classes)
        if not self._blends:
            return base, q
        partner = keys.integers(keys.fold_in(ctx.key, "mix"), len(x), (len(base), self.mix))
        return pseudo.mixed(base, x[partner]), pseudo.mixed(q, soft(y, classes, base)[partner])

    def _gap(self, x: Tensor, own: Tensor, local: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """L_con of features of pseudo-data and batch, over the rows that both have."""
        received = ctx.fixed["anchor"] if "anchor" in ctx.fixed else self._received(x, ctx, net)
        rows = min(len(own), len(local))
        own, received, local = own[:rows], received[:rows], local[:rows]
        if self.head != "none":
            own, received, local = (net.call(HEAD, z) for z in (own, received, local))
        towards = contrast.scaled(contrast.cosine(own, received), self.tau1, self.temperature)
        away = contrast.scaled(contrast.cosine(own, local), self.tau2, self.temperature)
        return contrast.two_way(towards, away).mean()

    def _received(self, x: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """Features by the received extractor, in the mode of the trained one."""
        before = {n: t for n, t in ctx.initial.items() if n not in net.buffers}
        return net.aside(before, grad=False).features(x)


def projector(width: int, kind: str) -> nn.Sequential:
    """Three layers with ReLU between: of 256, 256 and 128 units, or as the released code has them.

    >>> sum(p.numel() for p in projector(512, "paper").parameters())
    230016
    """
    hidden, out = (256, 128) if kind == "paper" else (2 * width, width)
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )
