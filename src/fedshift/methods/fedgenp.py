"""FedGenP (Taghiyarrenani et al., 2023): the server trains a generator of features for each client.

## The idea

Clients differ, so the mean of their models serves some of them badly. From the models that came
back, the server learns for each client k what it lacks: a generator $G_k(z | y)$ of features that
the *other* clients' heads classify as y and the head of client k does not. The client then trains
on its own samples and on what its generator makes.

## The loss

With $CE_i$ the cross-entropy of client i's head on generated features, a mean over the batch, the
server takes `gen_steps` Adam steps a round on

$$\\frac{1}{K-1} \\sum_{i \\ne k} CE_i - c \\min(CE_k, \\ln C + 2)$$

for each of the K participants, all generators at once. The minus sign is a gradient reversal behind
the generator. The client minimises

$$CE(p(f(x)), y) + a_r CE(p(\\tilde z), \\tilde y) + b_r KL(p(z_y) \\| p(f(x)))$$

where f and p are the features and the head of its model, $\\tilde z$ is generated for labels drawn
uniformly, and $z_y$ for the labels of its batch, as a target that gets no gradient. The weights
fall with the round, $a_r = \\max(10^{-4}, \\alpha d^r)$ and $b_r$ likewise from $\\beta$. The first
round is plain: there are no generators yet.

## When to use it

When clients have few samples each, and share classes. It needs heads that look at vectors, so
classification alone. Scores of the global model are joined by personal ones, of each client's model
as it left its local training. With few participants a round, generators of absent clients wait.
The published setting is plain SGD at 0.01, falling by 0.99 a round (`schedule="exponential"`),
and 20 local steps of 32 samples. The weights $\\alpha = \\beta = 10$ belong to that rate (for 26
classes of letters the authors take $\\beta = 1$): where steps are longer, with momentum or a higher
rate, 1 is safer.

## What crosses the wire

Down: the model, and the client's own generator (with 32-dimensional features and noise, ten
classes and 256 hidden units 27,968 numbers and 512 running statistics). Up: the model, whose head
the server must see client by client, so that secure aggregation is out; with
`label_weights="counts"` also how many samples of each class the client has.

## Differences from the released code

- The released reversal stands on the generator's input, which needs no gradient, and does nothing:
  generator k is trained to *please* client k. The published numbers come from that
  (`grl="released"`). With a reversal that works, the loss has no lower bound and training diverges
  after some rounds (`grl="uncapped"`, as printed); the cap above mends it.
- Weights by label counts (`label_weights="counts"`), though the paper says that no statistics of
  labels leave the client. Here they are counts of the training set plus one, there of the batches
  drawn. In the released loss they multiply as a mean of their own beside that of the losses.
- One head for mean and spread (`vae="code"`), and uniform noise (`noise="uniform"`).
- Batch norm's running statistics stay at the client (`bn="client"`), and the global score is of the
  global parameters with the client's statistics. Here they are averaged.
- The paper states the client's loss without the last term and with equal weights
  (`paper_loss=True`), and the generator's steps as alternating (`schedule="alternate"`: even steps
  for the others, odd ones against client k).
- Clients are told apart by their names. The released code compares a client's number with a
  position in a shuffled list and so leaves out some other client; that is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.errors import BadModel
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.optim import Optimizer
from fedshift.parts import rows
from fedshift.parts.contest import Contest
from fedshift.parts.fit import Loss, fit
from fedshift.parts.labels import class_counts, draw_labels, one_hot
from fedshift.parts.latent_generator import BUFFERS, LatentGenerator, divergence
from fedshift.tree import Tree, pick, row, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output

_LEAST = 1e-4  # where the weights of the client's terms stop falling


@dataclass(frozen=True)
class FedGenP(Method):
    """A generator for each client, of what the others know and it does not.

    >>> FedGenP().grl, FedGenP(schedule="alternate").schedule
    ('capped', 'alternate')
    """

    name: ClassVar[str] = "fedgenp"
    paper: ClassVar[str] = (
        "Taghiyarrenani et al., Heterogeneous Federated Learning via Personalized Generative "
        "Networks, arXiv 2308.13265, 2023"
    )
    scores_trained: ClassVar[bool] = True
    content: ClassVar[dict[str, str]] = {"counts": "statistics"}

    alpha: float = hp(
        10.0, "weight of generated features in the first round (a_0)", low=0, off=0.0, quick=1.0
    )
    beta: float = hp(
        10.0, "weight of the consistency term in the first round (b_0)", low=0, off=0.0, quick=1.0
    )
    decay: float = hp(0.98, "factor per round of both weights (d)", low=0, high=1)
    paper_loss: bool = hp(False, "weight 1 for generated features, no consistency term")
    grl: str = hp(
        "capped",
        "how a client's own head counts: reversed up to a cap, reversed, or not reversed at all",
        choices=("capped", "uncapped", "released"),
    )
    repulsion: float = hp(1.0, "weight of the reversed term (c)", low=0)
    schedule: str = hp(
        "joint",
        "both terms of the generator in every step, or in turn",
        choices=("joint", "alternate"),
    )
    label_weights: str = hp("uniform", "how heads count for a class", choices=("uniform", "counts"))
    vae: str = hp(
        "paper", "spread of the latent from a head of its own, or tied", choices=("paper", "code")
    )
    kl_weight: float = hp(0.0, "weight of the latent's divergence from a standard normal", low=0)
    noise: str = hp("normal", "what the generator's noise is", choices=("normal", "uniform"))
    noise_dim: int = hp(32, "width of the noise", low=1)
    hidden: int = hp(256, "width of the generator's hidden layer (h)", low=1, quick=16)
    gen_steps: int = hp(50, "generator steps per round (S)", low=1, quick=3)
    gen_batch: int = hp(32, "features that a generator makes per step", low=2, quick=8)
    gen_lr: float = hp(3e-4, "learning rate of Adam for generators", low=0)
    gen_decay: float = hp(0.98, "factor per round of that rate", low=0, high=1)
    gen_weight_decay: float = hp(1e-2, "weight decay of generators, added to the gradient", low=0)
    bn: str = hp(
        "aggregate",
        "running statistics of batch norm are averaged, or stay with the client",
        choices=("aggregate", "client"),
    )

    @property
    def generator(self) -> LatentGenerator:
        """The kind of generator."""
        return LatentGenerator(self.noise_dim, self.noise == "uniform", self.vae == "code")

    @property
    def optimizer(self) -> Optimizer:
        """The rule that trains generators."""
        return Optimizer("adam", weight_decay=self.gen_weight_decay)

    def scope(self, name: str, module: nn.Module) -> Scope:
        """Everything travels, except running statistics where they stay with the client."""
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        learnt = name.rpartition(".")[2] in dict(module.named_parameters(recurse=False))
        return Scope("kept" if self.bn == "client" and norm and not learnt else "both")

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Room for a generator and its Adam state per client, in the order of names."""
        if facts.task != "classification":
            raise BadModel(
                f"'{self.name}' generates features for a head that classifies, and this federation "
                f"learns {facts.task}: choose another method"
            )
        owners = rows.assign(facts.clients)
        like = next(iter(params.values()), torch.zeros(()))
        each = torch.zeros(len(owners), dtype=torch.int64, device=like.device)
        shapes = self.generator.initial(each, facts.classes, self.hidden, facts.width, like.dtype)
        generators = {n: torch.zeros_like(t) for n, t in shapes.items()}
        trained = {n: t for n, t in generators.items() if n not in BUFFERS}
        adam = self.optimizer.init(trained, rows=len(owners))
        tensors = {"available": like.new_ones(facts.classes)}
        tensors |= with_prefix("generator", generators) | with_prefix("adam", adam)
        return State(tensors, {"rounds": 0, **owners})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The client's generator, and for how many rounds there have been any."""
        place = rows.rows_of(server.numbers)[client]
        payload = with_prefix("generator", row(under("generator", server.tensors), place))
        if self.label_weights == "counts":
            payload["available"] = server.tensors["available"]
        return State(payload, {"rounds": server.numbers["rounds"]})

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """The participants' generators go on learning from the models that they just sent."""
        if not uploads.model:  # a stage that only collects
            return new, server
        owners, rounds = rows.rows_of(server.numbers), server.numbers["rounds"]
        generators = under("generator", server.tensors)
        adam, available = under("adam", server.tensors), server.tensors["available"]
        if rounds == 0:
            generators = self._fresh(generators, len(available), keys_of(key, "initial", owners))
        weight = torch.ones_like(available).expand(len(uploads.clients), -1)
        if self.label_weights == "counts":
            counts = uploads.extras["counts"]
            weight = counts / counts.sum(dim=0)
            available = (counts.amax(dim=0) > 1).to(counts)
        at = [owners[c] for c in uploads.clients]
        done = fit(
            self._contest(uploads, net, weight, available),
            rows.take({n: t for n, t in generators.items() if n not in BUFFERS}, at),
            self.gen_steps,
            self.optimizer,
            keys_of(key, "train", uploads.clients).to(available.device),
            lr=self.gen_lr * self.gen_decay**rounds,
            buffers=rows.take(pick(generators, BUFFERS), at),
            state=rows.take(adam, at),
            rest={**with_prefix("model", uploads.model), "place": torch.eye(len(at)).to(available)},
        )
        tensors = {
            "available": available,
            **with_prefix("generator", rows.put(generators, at, {**done.params, **done.buffers})),
            **with_prefix("adam", rows.put(adam, at, done.state)),
        }
        return new, State(tensors, {**server.numbers, "rounds": rounds + 1})

    def _fresh(self, like: Tree, classes: int, key: Tensor) -> Tree:
        """New generators, one for each key."""
        shape = like["mean.weight"]
        key = key.to(shape.device)
        return self.generator.initial(key, classes, self.hidden, shape.shape[1], shape.dtype)

    def _contest(self, uploads: Uploads, net: Net, weight: Tensor, available: Tensor) -> Loss:
        """The loss of one participant's generator, against the heads of all."""
        contest = Contest(self.grl, self.repulsion, self.schedule == "alternate")

        def head(model: Tree, z: Tensor) -> Tensor:
            return net.at(model, grad=True).head(z)

        def loss(tensors: Tree, rest: Tree, key: Tensor, step: int) -> Tensor:
            y = draw_labels(keys.fold_in(key, "labels"), self.gen_batch, available)
            made = self.generator(tensors, y, key, training=True)
            value = contest(
                made.z,
                y,
                everyone=lambda z: torch.vmap(head, in_dims=(0, None))(uploads.model, z),
                own=lambda z: head(under("model", rest), z),
                place=rest["place"],
                weight=weight,
                total=uploads.total,
                step=step,
            )
            if self.kl_weight == 0:
                return value
            return value + self.kl_weight * divergence(made.mean, made.log_variance).mean()

        return loss

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropy on generated features; consistency with those of the batch's labels."""
        if ctx.stage != "train":
            return {}
        rounds, classes = ctx.received["rounds"], ctx.facts.classes
        available = ctx.received.get("available", out.z.new_ones(classes))
        key = keys.fold_in(ctx.key, "generated")
        wanted = draw_labels(keys.fold_in(key, "labels"), self.gen_batch, available)
        both = torch.cat([one_hot(labels, classes, out.z) for labels in (wanted, y)])
        made = self.generator(under("generator", ctx.received), both, key).z
        terms: dict[str, Tensor] = {}
        if self.alpha:
            weight = self._weight(self.alpha, rounds, out.z) * self.gen_batch / len(y)
            terms["generated"] = weight * F.cross_entropy(net.head(made[: len(wanted)]), wanted)
        if self.beta and not self.paper_loss:
            target = net.head(made[len(wanted) :]).detach()
            weight = self._weight(self.beta, rounds, out.z)
            terms["consistency"] = weight * consistency(out.logits, target)
        return terms

    def _weight(self, start: float, rounds: Tensor, like: Tensor) -> Tensor:
        """A term's weight in a round; 0 in the first, when no generator is trained yet."""
        falling = start * torch.pow(self.decay, rounds.to(like.dtype))
        weight = torch.ones_like(falling) if self.paper_loss else falling.clamp_min(_LEAST)
        return torch.where(rounds > 0, weight, 0.0)

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """With weights by counts, one more than the samples of each class."""
        if self.label_weights == "uniform":
            return Report()
        return Report(individual={"counts": 1.0 + class_counts(data, ctx.facts.classes, ctx.lr)})


def consistency(logits: Tensor, target: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)), a mean over samples.

    >>> round(consistency(torch.tensor([[2.0, 0, 0]]), torch.tensor([[1.0, 1, 0]])).item(), 5)
    0.37755
    """
    log_p, log_q = target.log_softmax(dim=1), logits.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def keys_of(key: int, purpose: str, names: Iterable[str]) -> Tensor:
    """A key for each client, by its name [K]."""
    return torch.stack([keys.as_tensor(keys.fold(key, purpose, name)) for name in names])
