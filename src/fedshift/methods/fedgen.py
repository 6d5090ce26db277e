"""# FedGen: one generator of features, on which the clients' heads agree

No client sees all data, but their heads together know what features of each class look like. From
the models that came back, the server learns a light generator of such features, without any data.
Clients train on what it makes beside their own samples. The paper is Zhu, Hong and Zhou, Data-Free
Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.

## The loss

With CE_k the cross-entropy of client k's head on generated features, u_kc the share of client k in
the samples of class c, and g features generated from noise e for labels y that anybody has, the
server takes `gen_steps` Adam steps a round on

    sum_k mean_i u_(k, y_i) CE_k(g_i, y_i) + v exp(-mean_ij |e_i - e_j|^2 |g_i - g_j|)

with squares and distances as means over dimensions: the second term keeps features apart whose
noise is. The client, whose features are f(x) and whose head is p, minimises

    CE(p(f(x)), y) + a_r CE(p(g'), y') + b_r KL(p(g_y) || p(f(x)))

where g' is generated for labels y' drawn uniformly, and g_y for the labels of its batch, as a
target that gets no gradient. The weights fall with the round, a_r = max(1e-4, alpha d^r), and b_r
so from beta. In the first round, when the generator is not trained yet, and from the local epoch
`local_epochs` on, they are 0.

The generator has one hidden layer with batch norm, which takes the batch's own statistics at the
server, running ones at the client.

## When to use it

When clients lack classes or have few samples. It needs a head that classifies vectors. Features
behind a ReLU are never below zero, generated ones may be.

The published runs take 20 local steps of 32 samples, plain SGD at 0.01, and means weighted by
samples; for 26 classes of letters beta = 1 and `gen_lr=1e-4`, for faces `hidden=128`. Where local
steps go further than these, alpha = beta = 1 is safer.

## What crosses the wire

Down: the model, the generator (with 32-dimensional features and noise, ten classes and 256 hidden
units 19,744 numbers and 512 running statistics), and which classes anybody has. Up: the model,
whose head the server must see client by client, so that secure aggregation is out, and how many
samples of each class the client has.

## Differences from the released code

- It counts labels over the batches that a round drew, here over the training set; both add one to
  each class.
- Its noise is uniform on [0, 1) (`noise="uniform"`); the paper's is standard normal.
- In FedGenP's code, a fork of it, the mean of the weights u multiplies the mean of a head's
  losses. Here, as in the paper, each sample has the weight of its class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedshift import keys
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, State, Uploads
from fedshift.optim import Optimizer
from fedshift.parts.contest import cross_entropies, every_head
from fedshift.parts.fit import Loss, fit
from fedshift.parts.generated import falling, generated_terms
from fedshift.parts.labels import class_counts, draw_labels
from fedshift.parts.latent_generator import LatentGenerator, split
from fedshift.tree import Tree, map_tree, row, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output


@dataclass(frozen=True)
class FedGen(Method):
    """One generator of features for all clients, learnt from their heads.

    >>> FedGen(alpha=1.0, beta=1.0, noise="uniform").noise
    'uniform'
    """

    name: ClassVar[str] = "fedgen"
    paper: ClassVar[str] = (
        "Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning, "
        "ICML 2021"
    )
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    content: ClassVar[dict[str, str]] = {"counts": "statistics", "available": "statistics"}

    alpha: float = hp(
        10.0, "weight of generated features in the first round (a_0)", low=0, off=0.0, quick=1.0
    )
    beta: float = hp(
        10.0, "weight of the consistency term in the first round (b_0)", low=0, off=0.0, quick=1.0
    )
    decay: float = hp(0.98, "factor per round of both weights (d)", low=0, high=1)
    local_epochs: int = hp(20, "local epochs of a round in which they count", low=1)
    diversity: float = hp(1.0, "weight of keeping features apart (v)", low=0)
    noise: str = hp("normal", "what the generator's noise is", choices=("normal", "uniform"))
    noise_dim: int = hp(32, "width of the noise", low=1)
    hidden: int = hp(256, "width of the generator's hidden layer", low=1, quick=16)
    gen_steps: int = hp(50, "generator steps per round", low=1, quick=3)
    gen_batch: int = hp(32, "features that the generator makes per step", low=2, quick=8)
    gen_lr: float = hp(3e-4, "learning rate of the generator", low=0)
    gen_decay: float = hp(0.98, "factor per round of that rate", low=0, high=1)
    gen_weight_decay: float = hp(
        1e-2, "weight decay of the generator, added to the gradient", low=0
    )

    @property
    def generator(self) -> LatentGenerator:
        """The kind of generator."""
        return LatentGenerator(self.noise_dim, self.noise == "uniform", certain=True)

    @property
    def optimizer(self) -> Optimizer:
        """The rule that trains the generator."""
        return Optimizer("adam", weight_decay=self.gen_weight_decay)

    @property
    def _idle(self) -> bool:
        return self.alpha == 0 and self.beta == 0

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Room for the generator and its optimizer; it is drawn when first trained."""
        if self._idle:
            return State()
        like = next(iter(params.values()), torch.zeros(()))
        key = keys.as_tensor(0, like.device)
        drawn = self.generator.initial(key, facts.classes, self.hidden, facts.width, like.dtype)
        generator = map_tree(torch.zeros_like, drawn)
        memory = self.optimizer.init(map_tree(_alone, split(generator)[0]), rows=1)
        tensors = with_prefix("generator", generator) | with_prefix("optimizer", memory)
        return State({**tensors, "available": like.new_ones(facts.classes)}, {"rounds": 0})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The generator, the classes that there are, and for how many rounds it was trained."""
        tensors = {n: t for n, t in server.tensors.items() if not n.startswith("optimizer/")}
        return State(tensors, server.numbers)

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """The generator goes on learning from the models that clients just sent."""
        if self._idle or not uploads.model:
            return new, server
        rounds = server.numbers["rounds"]
        generator = under("generator", server.tensors)
        if rounds == 0:
            generator = self.generator.renewed(generator, keys.as_tensor(keys.fold(key, "initial")))
        counts = uploads.extras["counts"]
        available = (counts.amax(dim=0) > 1).to(counts)
        params, buffers = split(map_tree(_alone, generator))

        def draw(key: Tensor) -> Tree:
            y = draw_labels(keys.fold_in(key, "labels"), self.gen_batch, available)
            return {"y": y, **self.generator.draw(key, self.gen_batch, params)}

        done = fit(
            self._agreement(uploads, net, counts / counts.sum(dim=0)),
            params,
            self.gen_steps,
            self.optimizer,
            keys.as_tensor(keys.fold(key, "train"))[None],
            lr=self.gen_lr * self.gen_decay**rounds,
            buffers=buffers,
            state=under("optimizer", server.tensors),
            draw=draw,
        )
        tensors = with_prefix("generator", row({**done.params, **done.buffers}, 0))
        tensors |= with_prefix("optimizer", done.state) | {"available": available}
        return new, State(tensors, {"rounds": rounds + 1})

    def _agreement(self, uploads: Uploads, net: Net, share: Tensor) -> Loss:
        """The generator's loss, where heads have shares [K, C] in classes."""
        heads = every_head(net, uploads.model)

        def loss(tensors: Tree, rest: Tree, key: Tensor, step: Tensor) -> Tensor:
            y = rest["y"]
            made = self.generator(tensors, y, rest, training=True).z
            value = (share[:, y] * cross_entropies(heads(made), y)).sum(dim=0).mean()
            return value + self.diversity * sameness(rest["noise"], made)

        return loss

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropy on generated features; consistency with those of the batch's labels."""
        if self._idle or ctx.stage != "train" or ctx.phase != "model":
            return {}
        rounds, like = ctx.received["rounds"], ctx.received["generator/mean.bias"]
        rounds = torch.where(ctx.epoch < self.local_epochs, rounds, 0)
        alpha = falling(self.alpha, self.decay, rounds, like) if self.alpha else None
        beta = falling(self.beta, self.decay, rounds, like) if self.beta else None
        return generated_terms(self.generator, self.gen_batch, (alpha, beta), out, y, ctx, net)

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """One more than the samples of each class."""
        if self._idle or ctx.stage != "train":
            return Report()
        return Report(individual={"counts": 1.0 + class_counts(data, ctx.facts.classes, ctx.lr)})


def sameness(noise: Tensor, made: Tensor) -> Tensor:
    """exp(-mean_ij |e_i - e_j|^2 |g_i - g_j|): 1 where all features are the same, else less.

    >>> noise, features = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[1.0], [1.2]])
    >>> sameness(noise, features)  # the mean of 0, 5 * 0.2, 5 * 0.2 and 0 is 0.5
    tensor(0.6065)
    """
    apart = (noise[:, None] - noise).square().mean(dim=2)
    return torch.exp(-(apart * (made[:, None] - made).abs().mean(dim=2)).mean())


def _alone(t: Tensor) -> Tensor:
    return t[None]
