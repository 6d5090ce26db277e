"""FedLSI: domains are made interchangeable in latent space, on latents inverted from heads alone.

## The idea

Before the rounds begin, every client trains on its own once and sends up nothing but the head of
its model, a linear layer behind a batch norm. The server inverts the heads: it optimises noise
into latents that a head classifies as wished and whose statistics its norm has seen. On these it
trains a translator, a StarGAN on vectors, that takes a latent from one client's domain to
another's. The clients keep it, and from then on penalise how much it changes a latent: so what
tells domains apart is trained away. The server averages every scalar by its own importance.

## The loss

With z = g(x) of a client of domain d, and d' drawn for every sample from all domains (its own too):

    CE(h(z), y) + lambda_di mean_j (z - G(z, d, d'))_j^2

The gradient flows through z and through G(z); G itself is fixed, its dropout off. Once, at the
server, per batch of latents Z: CE(h(Z), y) + lambda_bn L_bn + lambda_norm L_norm, the squared
distances of Z's mean and variance to the running ones of h's norm, and the mean squared length. G
has StarGAN's losses (adversarial, domain, cycle) and 0.1 times the cross-entropies of all heads.
Aggregation is that of `importance`.

## When to use it

For a site that has never been seen, from few and different sites (styles, scanners), where the
statistics of latents may be shared but no images or styles. Its cost is a local training, an
inversion and a GAN before the first round: minutes on a GPU at the paper's sizes, seconds anywhere
at the `quick` ones. For latents above zero and unbounded (behind a ReLU) try `gan_bounded=false`.

## What crosses the wire

Up, once: each client's head with its norm's statistics (33,345 parameters for 512 features and 65
classes), looked at one by one; with `inversion_labels="client"` a histogram of labels. Down, once:
the translator (2,109,952 parameters for 512 features, 3 clients and 1024 hidden units) and the
client's number. Up, every round: the importances, as large as the model.

## Differences from the released code

In the code the inverted head is in train mode, so that its norm follows the statistics which it
should match (`inversion_frozen=false`), and a client's latents start from those of the client
before; here heads are in eval mode and each has noise of its own. Its gradient penalty mixes rows
(`gan_mixed=true`). It scores models in train mode on shuffled, full batches; here all samples are
scored in eval mode. The norms of its inversion are not squared (`inversion_squared=false`) and
weigh 0.01 and 0.001, and its lambda_di is 10.

The paper's text has a vanilla GAN on batches of one class, without the heads (`gan_kind="vanilla"`,
`gan_one_class=true`, `gan_label=0`), labels of latents as often as clients have them
(`inversion_labels="client"`), and a sum of squares (`distance="sum"`). Buffers, and parameters
without importance, take the protocol's weights; in paper and code those are "samples".
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

    gan_kind: str = hp("wgan-gp", "adversarial loss", choices=("wgan-gp", "vanilla"))
    gan_hidden: int = hp(1024, "width of the translator and the critic", low=2, quick=32)
    gan_bounded: bool = hp(True, "the translator ends in tanh")
    gan_steps: int = hp(10_000, "steps of the critic", low=0, quick=50)
    gan_batch: int = hp(16, "latents per step", low=2)
    gan_lr: float = hp(1e-4, "learning rate of both networks", low=0, quick=1e-3)
    gan_every: int = hp(5, "critic steps per step of the translator (n_critic)", low=1)
    gan_domain: float = hp(1.0, "weight of telling domains apart (lambda_cls)", low=0)
    gan_cycle: float = hp(10.0, "weight of coming back (lambda_rec)", low=0)
    gan_penalty: float = hp(10.0, "weight of the gradient penalty (lambda_gp)", low=0)
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

    def _all(self, prefix: str) -> dict[str, Any]:
        """The hyperparameters of a part, by the names that it gives them."""
        mine = [n for n in hypers(self) if n.startswith(prefix + "_")]
        return {n.removeprefix(prefix + "_"): getattr(self, n) for n in mine}

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """A norm without affine part becomes the first layer of the head."""
        if facts.task != "classification":
            raise BadValue(f"fedlsi inverts the heads of classifiers, but the task is {facts.task}")
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
        """Sizes, and each client's number as a domain: its place in the order of names."""
        if not self._translates:
            return State()
        domains = {f"domain/{name}": k for k, name in enumerate(sorted(facts.clients))}
        sizes = {"width": facts.width, "classes": facts.classes}
        return State({}, {**sizes, **domains, "hand-out": 0})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The translator and the client's domain, once."""
        if not server.numbers.get("hand-out"):
            return State()
        return State(server.tensors, {"domain": server.numbers[f"domain/{client}"]})

    def element_weights(self, name: str, uploads: Uploads) -> Tensor | None:
        """Shares in the importance of each scalar."""
        found = uploads.extras.get(f"importance/{name}")
        return None if found is None else shares(found, uploads.weights)

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """After the warm-up, heads become latents and latents a translator."""
        if "hand-out" not in server.numbers or uploads.stage not in ("warm-up", "translator"):
            return new, server
        tensors = dict(server.tensors)
        if uploads.stage == "warm-up":
            tensors = with_prefix("translator", self._trained(uploads, server, net, key))
        given = {**server.numbers, "hand-out": int(uploads.stage == "warm-up")}
        return new, State(tensors, given)

    def _trained(self, uploads: Uploads, server: State, net: Net, key: int) -> Tree:
        """The translator for the heads that came; in the order of names, whatever theirs was."""
        names = sorted(uploads.clients)
        rows = [uploads.clients.index(n) for n in names]
        up = {n: t[rows] for n, t in uploads.extras.items()}
        heads = under("head", up)
        norm = {n: heads[f"norm.running_{n}"] for n in ("mean", "var")} if self.head_norm else {}
        number = {n: int(v) for n, v in server.numbers.items()}
        each = [keys.as_tensor(keys.fold(key, n), uploads.samples.device) for n in names]
        histogram = up.get("histogram", uploads.samples.new_ones(len(names), number["classes"]))

        def head(tensors: Tree, z: Tensor) -> Tensor:
            return net.at({f"head.{n}": t for n, t in tensors.items()}, grad=True).head(z)

        inversion = Inversion(**self._all("inversion"))
        z, y = inversion.run(head, heads, norm, number["width"], histogram, torch.stack(each))
        domains = torch.tensor([number[f"domain/{n}"] for n in names], device=z.device)
        return StarGAN(**self._all("gan")).train(
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
            how = self._all("importance")
            found = importances(net, data, ctx.shared, ctx.samples, **how)
            return Report(individual=with_prefix("importance", found))
        if ctx.stage == "translator":
            return Report(keep=ctx.received)
        if ctx.stage != "warm-up" or not self._translates:
            return Report()
        up = {
            f"head/{n.removeprefix('head.')}": t
            for n, t in net.tensors.items()
            if n.startswith("head.") and t.is_floating_point()
        }
        if self.inversion_labels == "client":
            up["histogram"] = class_counts(data, ctx.facts.classes, ctx.lr)
        return Report(individual=up)


def change(z: Tensor, moved: Tensor, distance: str = "mean") -> Tensor:
    """The mean over samples of a latent's squared change, over its elements the mean or the sum.

    >>> z, moved = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    >>> change(z, moved), change(z, moved, "sum")
    (tensor(2.), tensor(4.))
    """
    each = (z - moved).square().mean(dim=0)
    return each.mean() if distance == "mean" else each.sum()
