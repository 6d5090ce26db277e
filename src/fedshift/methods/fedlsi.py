"""# FedLSI: domains are made interchangeable in latent space

Before the rounds begin, every client trains alone once and sends up nothing but the head of its
model, a linear layer behind a batch norm. The server inverts the heads into latents, and on these
trains a translator that takes a latent from one client's domain into another's. In the rounds,
clients penalise how much the translator changes their latents: what tells domains apart is trained
away. The server averages every scalar by its own importance, as `importance` does. The paper is
Federated Domain Generalization with Latent Space Inversion, ICDM 2025; the name FedLSI is ours.

## The loss

With z = g(x) of a client of domain d, and d' drawn for every sample from all m domains (its own
too):

    CE(h(z), y) + lambda_di mean_j (z - G(z, d, d'))_j^2

The gradient flows through z and through G(z); G itself is fixed and its dropout off.

Once, at the server, Adam moves noise Z ~ N(0, I), with labels y drawn uniformly, against

    CE(h(Z), y) + lambda_bn (|mean(Z) - m_h|^2 + |var(Z) - v_h|^2) + lambda_norm mean_b |z_b|^2

where m_h and v_h are the running statistics of the head's norm. Heads are in eval mode and fixed.
The translator G and its critic D are a StarGAN on these vectors, with

    D: -mean D(z) + mean D(G(z, d, d')) + lambda_cls CE(D_cls(z), d) + lambda_gp penalty
    G: -mean D(G(z, d, d')) + lambda_cls CE(D_cls(G(z, d, d')), d')
       + lambda_rec mean |z - G(G(z, d, d'), d', d)| + 0.1 sum_k CE(h_k(G(z, d, d')), y)

and a step of G after every fifth of D. Aggregation is that of `importance`.

## When to use it

For a site that has never been seen, from few and different sites (styles, scanners), where heads
may be shared but no images and no styles. Before the first round it costs a local training, an
inversion and a GAN; the `quick` sizes take seconds on a CPU. Parts can be left out one by one:
`translator=false`, `importance=false`, `weight=0`, and each loss of the inversion by its weight.
G's results lie between -1 and 1; for latents far from there (behind a ReLU, say) try
`gan_bounded=false`. The paper trains with SGD, rate 0.001, momentum 0.9, weight decay 5e-4,
batches of 32, 10 local epochs, 20 rounds.

## What crosses the wire

Up, once: each client's head with its norm's statistics (33,345 parameters for 512 features and 65
classes), looked at one by one; with `inversion_labels="client"` its histogram of labels too. Down,
once: the translator (2,109,952 parameters for 512 features, 3 clients and 1024 hidden units) and
the client's number; the server then forgets it, and each client keeps it. Up, every round: the
importances, as large as the trained parameters.

## Differences from the released code

- It inverts heads in train mode, so that their norms follow the statistics they should match
  (`inversion_frozen=false`), and starts a client's latents from those of the client before, with
  Adam's memory (`inversion_carried=true`).
- It does not square the distances and lengths of the inversion (`inversion_squared=false`), weighs
  them 0.01 and 0.001, and sets lambda_di to 10.
- Its gradient penalty mixes rows (`gan_mixed=true`), and it trains for 20 local epochs.
- It scores models in train mode, on shuffled batches without the last one. Here models are scored
  in eval mode on all samples.
- The paper's text has a vanilla GAN (which knows no gradient penalty) on batches of one class,
  without the heads: `gan_kind="vanilla"`, `gan_one_class=true`, `gan_label=0`. It draws labels as
  often as a client has them (`inversion_labels="client"`) and sums squares (`distance="sum"`).
- Buffers, and scalars that are important to nobody, take the protocol's weights. In paper and code
  these are the numbers of samples: `weights="samples"`. The code keeps momentum between rounds:
  `reset_optimizer=false`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.errors import BadValue
from fedshift.federation import Facts
from fedshift.hparam import hp, hypers
from fedshift.method import Ctx, Data, Method, Report, Stage, State, Uploads
from fedshift.parts.gan import StarGAN, translate
from fedshift.parts.importance import importances, shares
from fedshift.parts.inversion import Inversion
from fedshift.parts.labels import class_counts
from fedshift.protocol import Protocol
from fedshift.tree import Tree, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class FedLSI(Method):
    """A translator between the clients' latents, and importance-weighted aggregation.

    >>> [stage.name for stage in FedLSI().stages(Protocol(rounds=3))]
    ['warm-up', 'translator', 'train']
    >>> [stage.name for stage in FedLSI(translator=False).stages(Protocol(rounds=3))]
    ['train']
    """

    name: ClassVar[str] = "fedlsi"
    paper: ClassVar[str] = (
        "Federated Domain Generalization with Latent Space Inversion, ICDM 2025 (the name is ours)"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    content: ClassVar[dict[str, str]] = {
        "importance/": "statistics",
        "histogram": "statistics",
    }

    translator: bool = hp(True, "invert heads, train a translator and use its loss", off=False)
    importance: bool = hp(True, "weight every scalar parameter by its importance", off=False)
    head_norm: bool = hp(True, "a batch norm without affine part before the head", off=False)
    weight: float = hp(1.0, "weight of the invariance loss (lambda_di)", low=0, off=0.0)
    distance: str = hp(
        "mean", "a latent's squared change over its elements", choices=("mean", "sum")
    )
    warmup_epochs: int = hp(30, "local epochs before heads are sent", low=1, quick=1)

    inversion_batches: int = hp(200, "batches of latents per client (s)", low=1, quick=4)
    inversion_batch: int = hp(32, "latents per batch", low=2)
    inversion_labels: str = hp(
        "uniform", "where the latents' labels come from", choices=("uniform", "client")
    )
    inversion_steps: int = hp(10_000, "steps of Adam on the latents", low=0, quick=50)
    inversion_lr: float = hp(1e-4, "learning rate on the latents", low=0, quick=0.05)
    inversion_task: float = hp(1.0, "weight of the latents' cross-entropy", low=0)
    inversion_statistics: float = hp(1e-3, "weight of the norm's statistics (lambda_bn)", low=0)
    inversion_length: float = hp(1e-4, "weight of the latents' length (lambda_norm)", low=0)
    inversion_squared: bool = hp(True, "distances and lengths are squared")
    inversion_frozen: bool = hp(True, "heads are inverted in eval mode")
    inversion_carried: bool = hp(False, "a client's latents start from the last one's, as released")

    gan_kind: str = hp("wgan-gp", "adversarial loss", choices=("wgan-gp", "vanilla"))
    gan_hidden: int = hp(1024, "width of the translator and the critic", low=2, quick=32)
    gan_bounded: bool = hp(True, "the translator ends in tanh")
    gan_steps: int = hp(10_000, "steps of the critic", low=0, quick=50)
    gan_batch: int = hp(16, "latents per step", low=2)
    gan_lr: float = hp(1e-4, "learning rate of both networks", low=0, quick=1e-3)
    gan_every: int = hp(5, "critic steps per step of the translator (n_critic)", low=1)
    gan_domain: float = hp(1.0, "weight of telling domains apart (lambda_cls)", low=0)
    gan_cycle: float = hp(10.0, "weight of coming back (lambda_rec)", low=0)
    gan_penalty: float = hp(10.0, "weight of wgan-gp's gradient penalty (lambda_gp)", low=0)
    gan_label: float = hp(0.1, "weight of the heads' cross-entropies", low=0)
    gan_mixed: bool = hp(False, "the gradient penalty mixes rows, as released")
    gan_one_class: bool = hp(False, "every batch is of one class")

    importance_group: int = hp(32, "samples whose gradients are summed before | |", low=1)
    importance_norm: str = hp(
        "squared", "which norm of the outputs is watched", choices=("squared", "plain")
    )
    importance_encoder: str = hp(
        "logits", "what parameters before the head are judged by", choices=("logits", "features")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = self.inversion_statistics > 0 or not self.inversion_frozen
        if self._translates and needs and not self.head_norm:
            raise BadValue(
                "fedlsi.head_norm is false, so heads have no statistics to match: set "
                "inversion_statistics to 0 and inversion_frozen to true"
            )

    @property
    def _translates(self) -> bool:
        return self.translator and self.weight > 0

    def _of(self, part: str) -> dict[str, Any]:
        """A part's hyperparameters under its own names: `gan_lr` is the GAN's `lr`."""
        names = [n for n in hypers(self) if n.startswith(f"{part}_")]
        return {n.removeprefix(f"{part}_"): getattr(self, n) for n in names}

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """A norm without affine part becomes the first layer of the head."""
        if self.head_norm:
            norm: nn.Module = nn.BatchNorm1d(facts.width, affine=False)
            layers = OrderedDict(norm=norm, layer=model.get_submodule("head"))
            model.head = nn.Sequential(layers)
        return model

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Local training, the hand-out of the translator, rounds."""
        train = Stage("train", protocol.rounds)
        if not self._translates:
            return (train,)
        warm_up = Stage("warm-up", 1, "visit", everyone=True, epochs=self.warmup_epochs)
        return warm_up, Stage("translator", 1, "collect", everyone=True), train

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Sizes, and each client's domain: its place in the order of names."""
        if not self._translates:
            return State()
        domains = {f"domain/{name}": k for k, name in enumerate(sorted(facts.clients))}
        return State({}, {"width": facts.width, "classes": facts.classes, **domains})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The translator and the client's domain, as soon as there is one."""
        if not server.tensors:
            return State()
        return State(server.tensors, {"domain": server.numbers[f"domain/{client}"]})

    def element_weights(self, name: str, uploads: Uploads) -> Tensor | None:
        """Shares in the importance of each scalar."""
        found = uploads.extras.get(f"importance/{name}")
        return None if found is None else shares(found, uploads.weights)

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Heads become latents and latents a translator, which is dropped once it was sent."""
        if not self._translates or uploads.stage not in ("warm-up", "translator"):
            return new, server
        sent = uploads.stage == "translator"
        found = {} if sent else self._trained(uploads, dict(server.numbers), net, key)
        return new, State(with_prefix("translator", found), server.numbers)

    def _trained(
        self, uploads: Uploads, numbers: dict[str, int | float], net: Net, key: int
    ) -> Tree:
        """The translator for the heads that came; in the order of names, whatever theirs was."""
        names = sorted(uploads.clients)
        up = {n: t[[uploads.clients.index(c) for c in names]] for n, t in uploads.extras.items()}
        heads = under("head", up)
        norm = {n: heads[f"norm.running_{n}"] for n in ("mean", "var")} if self.head_norm else {}
        device = uploads.samples.device
        each = torch.stack([keys.as_tensor(keys.fold(key, n), device) for n in names])
        width, classes = int(numbers["width"]), int(numbers["classes"])
        histogram = up.get("histogram", uploads.samples.new_ones(len(names), classes))
        domains = torch.tensor([int(numbers[f"domain/{n}"]) for n in names], device=device)

        def head(tensors: Tree, z: Tensor) -> Tensor:
            return net.at({f"head.{n}": t for n, t in tensors.items()}, grad=True).head(z)

        inversion = Inversion(**self._of("inversion"))
        z, y = inversion.run(head, heads, norm, width, histogram, each)
        return StarGAN(**self._of("gan")).train(
            z.flatten(0, 2),
            y.flatten(),
            domains.repeat_interleave(y[0].numel()),
            uploads.total,
            lambda z: torch.vmap(head, in_dims=(0, None))(heads, z),
            keys.fold(key, "translator"),
        )

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """How much the translator changes the latents."""
        if "domain" not in ctx.kept:  # there is no translator yet
            return {}
        z = out.z
        target = keys.integers(keys.fold_in(ctx.key, "domain"), len(ctx.facts.clients), (len(z),))
        own = ctx.kept["domain"].expand(len(z))
        moved = translate(under("translator", ctx.kept), z, own, target, self.gan_bounded)
        return {"invariance": self.weight * change(z, moved, self.distance)}

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """The head after the warm-up, importances after a round; the translator is kept."""
        if ctx.stage == "train" and self.importance:
            found = importances(net, data, ctx.shared, ctx.samples, **self._of("importance"))
            return Report(individual=with_prefix("importance", found))
        if ctx.stage == "translator":
            return Report(keep=ctx.received)
        if ctx.stage != "warm-up" or not self._translates:
            return Report()
        floats = {n: t for n, t in net.tensors.items() if t.is_floating_point()}
        up = {n.replace(".", "/", 1): t for n, t in floats.items() if n.startswith("head.")}
        if self.inversion_labels == "client":
            up["histogram"] = class_counts(data, ctx.facts.classes, ctx.lr)
        return Report(individual=up)


def change(z: Tensor, moved: Tensor, distance: str = "mean") -> Tensor:
    """The mean over samples of a latent's squared change, over its elements the mean or the sum.

    >>> z, moved = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    >>> change(z, moved), change(z, moved, "sum")
    (tensor(2.), tensor(4.))
    """
    squares = (z - moved).square()
    return squares.mean() if distance == "mean" else squares.sum(dim=1).mean()
