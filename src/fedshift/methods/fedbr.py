"""# FedBR: pseudo-data against the bias of local learning

A client that has few classes learns to predict only those, and its features drift away from
everybody else's. So all clients share a handful of pseudo-data: each is the mean of ten images and
belongs to no class. Component 1 asks for undecided predictions on them. Component 2 trains a
projection head to expose how far a client's features of them have gone from the received
extractor's, and then trains the extractor to close what the head exposed.
The paper is Guo, Tang and Lin, FedBR: Improving Federated Learning on Heterogeneous Data via Local
Learning Bias Reduction, ICML 2023.

## The loss

With the extractor f, the classifier g, the head P, the received extractor f_g, pseudo-data x_p with
labels q, and rows of x_p and of the batch x paired by position (as many as both have),

    L_con = mean softplus(s2 - s1),  s1 = tau1 cos(P(f(x_p)), P(f_g(x_p))),
                                     s2 = tau2 cos(P(f(x_p)), P(f(x)))

and each local step is two, first up, then down with the new head:

    up:    P on L_con
    down:  f and g on CE(g(f(x)), y) + mu L_con + lam CE(g(f(x_p)), q)

There are two kinds of pseudo-data. RSM (`source="rsm"`) takes means of the clients' own samples,
and q is uniform. Mixture (`source="mixture"`) takes means of public data and blends each with K
random samples of the batch, anew at every step: (x_p + sum x_k) / (K + 1), and q likewise.

The paper's ablations are `mu=0` (component 1), `lam=0` (component 2), `max_step=False` (the head
stays as it began: "min step" alone), `head="none"`, `every`, `source` and `mix`.

## When to use it

For classification, when clients lack classes and also look different. It goes with Mixup, FedProx,
FedCM, FedDecorr and FedNTD. A step takes about 2.4 times as long as FedAvg's, with component 1
alone 1.8 times (the digits CNN, 20 stacked clients, batches and pseudo-data of 32, one H200); with
Mixture longer, since f_g looks anew at every step. With batch norm, take two pseudo-data or more.

## What crosses the wire

The head travels with the model. Before training, every client sends its share of the pseudo-data
(RSM) and gets all of them back, to keep; with `every="round"` this happens in each round. A mean of
ten images of one client is less than its images, but it is made of them: where all images of a
client look alike, it hides little. With Mixture nothing made of the clients' data goes up.

## Differences from the released code

- Temperatures multiply, as in the code. The paper prints a division (`temperature="divide"`), with
  which its own experiments at tau2 = 0 cannot be run.
- Every client gives as many means as any other, as in the paper's Algorithm 2. The code draws a
  client for each: `donors="uniform"` (`"samples"`: in proportion to their data). Then each client
  sends a full set.
- The head has layers of 256, 256 and 128, as in the paper. The code's has twice the width of the
  features inside and that width outside: `head="released"`.
- f_g looks at the blend of the step (Mixture); the code keeps what it saw in the round's first. It
  normalises by the batch, as f does, and drops nothing out.
- Public data are normalised as the clients' are; the code does not.
- The paper's networks have no batch norm. Where there is some, pseudo-data enter its running
  statistics, as in the code; `pseudo_mode="apart"` keeps them out. Training itself is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.data.in_memory import inputs
from fedshift.errors import BadValue, CannotCombine
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

    >>> [phase.name for phase in FedBR().phases()], [phase.name for phase in FedBR(mu=0).phases()]
    (['fedbr-max', 'model'], ['model'])
    """

    name: ClassVar[str] = "fedbr"
    paper: ClassVar[str] = (
        "Guo et al., FedBR: Improving Federated Learning on Heterogeneous Data via Local Learning "
        "Bias Reduction, ICML 2023"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
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
    donors: str = hp("even", "whose data the means are of (RSM)", choices=pseudo.DONORS)
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
        if not self._idle:
            pseudo.check_size(self.size, model, "fedbr.size")
        if self.mu > 0 and self.head != "none":
            paper = self.head == "paper"
            hidden, out = (256, 128) if paper else (2 * facts.width, facts.width)
            model.add_module(HEAD, contrast.projector(facts.width, hidden, out))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The head travels like the model, trained by a phase of its own or by none."""
        if not name.startswith(f"{HEAD}."):
            return Scope()
        return Scope(group=HEAD if self._plays else "frozen")

    def phases(self) -> tuple[Phase, ...]:
        """The head up, then the model down."""
        up = Phase(UP, (HEAD,), ("gap",), sign=-1.0, train_mode=(HEAD, "model"))
        return (up, Phase()) if self._plays else (Phase(),)

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Collect the pseudo-data, and where they stay the same, send them once."""
        train = Stage("train", protocol.rounds)
        collect, send = (Stage(n, 1, "collect", everyone=True) for n in (COLLECT, SEND))
        if self._idle:
            return (train,)
        return (collect, send, train) if self.every == "once" else (collect, train)

    def _asks(self, stage: str) -> bool:
        """Whether pseudo-data are made in a stage."""
        return stage == COLLECT or (stage == "train" and self.every == "round" and not self._idle)

    # -- server: make the pseudo-data, hold them until they are with the clients ---------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Nothing yet; public data that do not fit are refused before anybody trains."""
        if self.proxy:
            pseudo.check_public(self.proxy, facts.shape)
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
        else:
            made = pseudo.collected(uploads, "means", draw, self.size, self.donors)
        return new, State({"pseudo": made})

    # -- client --------------------------------------------------------------------------------

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Means of own data; and the pseudo-data that came, to keep."""
        if ctx.stage == SEND:
            return Report(keep={"pseudo": ctx.received["pseudo"]})
        if self.proxy or not self._asks(ctx.stage):
            return Report()
        clients = len(ctx.facts.clients)
        givers = clients if ctx.stage == COLLECT else ctx.protocol.participants(clients)
        count, key = pseudo.quota(self.size, givers, self.donors), keys.fold_in(ctx.key, "means")
        shape, dtype = ctx.facts.shape, ctx.lr.dtype
        means = pseudo.means_of(data, ctx.samples, shape, key, count, self.mean_of, dtype)
        return Report(individual={"means": means})

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """The pseudo-data as the network takes them; where they stay, what f_g says of them."""
        held = {**ctx.kept, **ctx.received}
        if ctx.stage in (COLLECT, SEND) or "pseudo" not in held:
            return {}
        x = held["pseudo"]
        if self.proxy:
            x = ctx.facts.pipeline(x, None, x.dtype)
        if self.mu == 0 or self._blends:
            return {"pseudo": x}
        return {"pseudo": x, "received": received(x, ctx, net)}

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The gap, going up; the gap and the undecided predictions, going down."""
        if self._idle or ctx.phase not in (UP, "model"):
            return {}
        if "pseudo" not in ctx.fixed:
            raise CannotCombine(
                f"fedbr has no pseudo-data yet in the stage '{ctx.stage}': name it before the "
                "method that this stage belongs to"
            )
        x, q = self._pseudo(out, y, ctx)
        if ctx.phase == UP:  # the extractor is only looked at
            still = net.aside(grad=False)
            return {"gap": self._gap(x, still.features(x), still.features(out.x), ctx, net)}
        shown = net.aside() if self.pseudo_mode == "apart" else net
        z, terms = shown.features(x), {}
        if self.mu:
            terms["contrast"] = self.mu * self._gap(x, z, out.z, ctx, net)
        if self.lam:
            terms["undecided"] = self.lam * F.cross_entropy(shown.head(z), q)
        return terms

    def _pseudo(self, out: Output, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """The pseudo-data of this step, and their labels q."""
        x, classes = ctx.fixed["pseudo"], ctx.facts.classes
        q = x.new_full((len(x), classes), 1.0 / classes)
        if not self._blends:
            return x, q
        key, labels = keys.fold_in(ctx.key, "mix"), soft(y, classes, x)
        return pseudo.blended(x, q, out.x, labels, key, self.mix)

    def _gap(self, x: Tensor, own: Tensor, local: Tensor, ctx: Ctx, net: Net) -> Tensor:
        """L_con of features of pseudo-data x and of the batch, over the rows that both have."""
        before = received(x, ctx, net) if self._blends else ctx.fixed["received"]
        rows = min(len(own), len(local))
        e1, e2, e3 = own[:rows], before[:rows], local[:rows]
        if self.head != "none":
            e1, e2, e3 = (net.call(HEAD, e) for e in (e1, e2, e3))
        s1 = contrast.scaled(contrast.cosine(e1, e2), self.tau1, self.temperature)
        s2 = contrast.scaled(contrast.cosine(e1, e3), self.tau2, self.temperature)
        return contrast.two_way(s1, s2).mean()


def received(x: Tensor, ctx: Ctx, net: Net) -> Tensor:
    """f_g(x): by the model as the trip began, without dropout, normalised by the batch."""
    return net.at(ctx.initial, by_batch=True).features(x)
