"""# FAug: a generator that evens out the clients' labels

A client that lacks classes cannot learn them. So all clients send the server a few samples of each
class that they have. The server trains a conditional GAN on them, and every client adds to its own
data what its generator makes of the classes that it lacks, until it has all of them alike. The
paper is Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation
and Augmentation under Non-IID Private Data, 2018.

## The step

With n_c samples of class c at a client, it lacks

    max_c n_c + extra - n_c        of class c:  (90, 10, 0) lacks (0, 80, 90)

and trains on own and generated samples together: each sample of a batch is, with the share of what
is lacked in the whole, exchanged for one freshly generated, of a class drawn in proportion to what
is lacked of it. A local epoch has as many steps as before. Then all is FedAvg's.

Generator and critic have three dense layers, take noise and a label, and play the non-saturating
game, with every class as often as others.

## When to use it

For classification of small images, when labels are skewed. Where all clients have all classes alike
nothing is lacked and it is FedAvg, unless `extra` asks for more of each. A generator of a few
hundred images is poor, and larger images want other networks than these.

## What crosses the wire

Once, before training, up: `seeds` samples of each class, as they are, looked at one by one: no
other method here sends raw samples. Seeds are of all classes, so that they do not tell which are
lacking more than by their absence. Down, once: the generator, which each client keeps, and which
classes anybody has.

## Differences from the paper

It leaves most of the design open, and its code was not released.

- Its server adds images from a search engine to the seeds. Here there are the seeds alone.
- Its clients name the classes that they lack, among others for cover. Here they send seeds of all.
- It trains by federated distillation, here by averages of models, as in the comparisons of FRAug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift import keys
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Stage, State, Uploads
from fedshift.parts.conditional_gan import ConditionalGAN
from fedshift.parts.labels import class_counts, draw_labels, one_hot
from fedshift.parts.seeds import seeds_of
from fedshift.protocol import Protocol
from fedshift.tree import Tree, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net

COLLECT, SEND = "faug-collect", "faug-send"


@dataclass(frozen=True)
class FAug(Method):
    """Generated samples of the classes that a client lacks.

    >>> [stage.name for stage in FAug().stages(Protocol())]
    ['faug-collect', 'faug-send', 'train']
    """

    name: ClassVar[str] = "faug"
    paper: ClassVar[str] = (
        "Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation "
        "and Augmentation under Non-IID Private Data, 2018"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    content: ClassVar[dict[str, str]] = {
        "seeds": "raw data",
        "there": "statistics",
        "available": "statistics",
    }

    seeds: int = hp(10, "samples of each class that a client sends (0: none)", low=0, off=0)
    extra: int = hp(0, "samples that are lacked of each class besides (r)", low=0)
    noise_dim: int = hp(64, "width of the generator's noise", low=1, quick=8)
    hidden: int = hp(256, "width of the hidden layers of generator and critic", low=1, quick=16)
    gan_steps: int = hp(2000, "steps of both", low=1, quick=3)
    gan_batch: int = hp(64, "samples in a step of both", low=1, quick=8)
    gan_lr: float = hp(2e-4, "learning rate of both", low=0)

    @property
    def gan(self) -> ConditionalGAN:
        """The networks and how they are trained."""
        return ConditionalGAN(
            self.noise_dim, self.hidden, self.gan_steps, self.gan_batch, self.gan_lr
        )

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """Collect seeds, send the generator, train."""
        once = [Stage(n, 1, "collect", everyone=True) for n in (COLLECT, SEND)]
        return (*(once if self.seeds else ()), Stage("train", protocol.rounds))

    # -- server: train the generator, hold it until it is with the clients ---------------------

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The generator, as long as it is not with the client."""
        return server

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """Train the generator on seeds; once it is sent, forget it."""
        if uploads.stage == SEND:
            return new, State()
        if uploads.stage != COLLECT:
            return new, server
        order = sorted(range(len(uploads.clients)), key=uploads.clients.__getitem__)
        seeds, there = (uploads.extras[n][order] for n in ("seeds", "there"))
        classes = seeds.shape[1]
        y = torch.arange(classes, device=seeds.device)[:, None].expand_as(there)
        x, y = seeds[there > 0].flatten(1), y[there > 0]
        generator = self.gan.train(x, y, classes, key)
        available = (there.sum(dim=(0, 2)) > 0).to(x)
        return new, State({**with_prefix("generator", generator), "available": available})

    # -- client --------------------------------------------------------------------------------

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """Seeds of each class; and the generator that came, to keep."""
        if ctx.stage == SEND:
            return Report(keep=dict(ctx.received))
        if ctx.stage != COLLECT:
            return Report()
        key = keys.fold_in(ctx.key, "seeds")
        x, there = seeds_of(data, ctx.facts.classes, self.seeds, ctx.facts.shape, key, ctx.lr)
        return Report(individual={"seeds": x, "there": there})

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """How many samples of each class are lacked, and their share in the whole."""
        if "available" not in ctx.kept or ctx.stage == SEND:
            return {}
        counts = class_counts(data, ctx.facts.classes, ctx.lr)
        lacked = lacking(counts, self.extra) * ctx.kept["available"]
        return {"lacked": lacked, "share": lacked.sum() / (lacked + counts).sum()}

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Some of the batch exchanged for generated samples."""
        if "lacked" not in ctx.fixed:
            return x, y
        key, dtype = keys.fold_in(ctx.key, "generated"), x.dtype
        wanted = draw_labels(keys.fold_in(key, "class"), len(x), ctx.fixed["lacked"])
        wanted = wanted.clamp_max(ctx.facts.classes - 1)  # beyond, where nothing is lacked
        z = keys.normal(keys.fold_in(key, "noise"), (len(x), self.noise_dim), dtype)
        made = self.gan.make(under("generator", ctx.kept), z, wanted).reshape(x.shape)
        swap = keys.uniform(keys.fold_in(key, "swap"), (len(x),), dtype) < ctx.fixed["share"]
        if y.is_floating_point():
            label = one_hot(wanted, ctx.facts.classes, y)
            y = torch.where(swap[:, None], label, y)
        else:
            y = torch.where(swap, wanted, y)
        return torch.where(swap.reshape(-1, *[1] * (x.dim() - 1)), made, x), y


def lacking(counts: Tensor, extra: int = 0) -> Tensor:
    """What each class lacks to have as many samples as the largest, and `extra` more.

    >>> lacking(torch.tensor([90.0, 10.0, 0.0]))
    tensor([ 0., 80., 90.])
    """
    return counts.max() + extra - counts
