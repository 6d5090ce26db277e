"""# FedGenP: a generator of features for each client

Clients differ, so the mean of their models serves some of them badly. From the models that came
back, the server learns what each client lacks: a generator of features that the *other* clients'
heads classify rightly and its own head does not. The client then trains on its own samples, which
never leave it, and on what its generator makes.
The paper is Taghiyarrenani et al., Heterogeneous Federated Learning via Personalized Generative
Networks, arXiv 2308.13265, 2023.

## The loss

With CE_i the cross-entropy of client i's head on generated features, a mean over the batch, the
server takes `gen_steps` Adam steps a round on

    mean over i != k of CE_i - c min(CE_k, ln C + 2)

for each participant k, all generators at once. The minus sign is a gradient reversal; above the cap
the second term has no gradient. The client, whose features are f(x) and whose head is p, minimises

    CE(p(f(x)), y) + a_r CE(p(z'), y') + b_r KL(p(z_y) || p(f(x)))

where z' is generated for labels y' drawn uniformly, and z_y for the labels of its batch, as a
target that gets no gradient. The weights fall with the round, a_r = max(1e-4, alpha d^r), and b_r
so from beta; in the first round, when no generator is trained yet, they are 0.

A generator is a hidden layer with batch norm below two heads, for mean and log-variance v of a
normal: z = mean + e exp(v / 2). Batch norm takes the batch's own statistics at the server, running
ones at the client.

## When to use it

When clients have few samples each, and share classes. It needs a head that classifies vectors.
Scores of the global model are joined by personal ones, of each client's model as it left its last
training. The generator of an absent client waits, with its optimizer; a round with one participant
has nobody to learn from, and trains none.

The published runs take 20 local steps of 32 samples, plain SGD at 0.01 falling by 0.99 a round
(`schedule="exponential"`), and means weighted by samples; for 26 classes of letters beta = 1 and
`gen_lr=1e-4`, for faces `hidden=128`. Where local steps go further than these, with momentum or a
higher rate, alpha = beta = 1 is safer.

## What crosses the wire

Down: the model, and the client's own generator (with 32-dimensional features and noise, ten classes
and 256 hidden units 27,968 numbers and 512 running statistics). Up: the model, whose head the
server must see client by client, so that secure aggregation is out. With `label_weights="counts"`
also, up, how many samples of each class the client has, and down, which classes anybody has.

## Differences from the released code

- Its reversal stands on the generator's input, which needs no gradient, and does nothing: generator
  k is trained to *please* client k. The published numbers come from that (`grl="released"`: sums
  for means, and CE_k times the number of all clients). With a reversal but without the cap, as
  printed, the loss has no lower bound and training may diverge (`grl="uncapped"`).
- It weights heads and leaves out classes by label counts (`label_weights="counts"`), though the
  paper says that no statistics of labels leave a client. Counts are one more than the samples of
  the training set; there, of the batches drawn. In its loss the mean of the weights multiplies the
  mean of the losses, and so it does here under `grl="released"`.
- One head gives mean and spread (`vae="code"`); noise is uniform on [0, 1) (`noise="uniform"`).
- Running statistics of batch norm stay at the client (`bn="client"`); a global score is then of the
  global parameters with the client's own statistics. Here they are averaged.
- The paper's text differs from its code and from the default here: no last term in the client's
  loss and equal weights (`paper_loss=True`), the two terms of the server's loss in turn
  (`schedule="alternate"`: even steps for the others, odd ones against client k), and SGD at 0.01
  for generators (`gen_optimizer="sgd"`).
- Not offered: it takes a client's number for its place in a shuffled list, and so leaves the wrong
  client out of the mean, or nobody, and then counts one gradient twice; and a client's learning
  rate is that of the round of its previous participation. Here clients are told apart by names.
- Its global score pools the test samples of all clients; tables here are means over clients.

The released code on MNIST (20 clients, Dirichlet(alpha), 300 rounds, one seed, global score of the
last round), as it is, with a reversal that works, and with the cap, equal weights of labels and
clients told apart besides:

| samples, alpha, clients a round | FedAvg | FedGen | as released | reversal | and cap |
| :-- | --: | --: | --: | --: | --: |
| all, 0.1, 20 | 90.8 | 95.9 | 95.9 | 83.6 | 94.2 |
| all, 1, 20 | 94.1 | 97.7 | 97.6 | 92.2 | 97.2 |
| 3,000, 10, 10 | 93.6 | 95.1 | 95.4 | 9.9 | 95.4 |
| 1,500, 10, 20 | 91.8 | 92.3 | 92.6 | 92.1 | 93.3 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedshift import keys
from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Data, Method, Report, Scope, State, Uploads
from fedshift.optim import Optimizer
from fedshift.parts import rows
from fedshift.parts.contest import Contest, every_head
from fedshift.parts.fit import Loss, fit
from fedshift.parts.generated import falling, generated_terms
from fedshift.parts.labels import class_counts, draw_labels
from fedshift.parts.latent_generator import LatentGenerator, divergence, split
from fedshift.tree import Tree, map_tree, row, under, with_prefix

if TYPE_CHECKING:
    from fedshift.net import Net, Output


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
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    scores_trained: ClassVar[bool] = True
    content: ClassVar[dict[str, str]] = {"counts": "statistics"}

    alpha: float = hp(
        10.0, "weight of generated features in the first round (a_0)", low=0, off=0.0, quick=1.0
    )
    beta: float = hp(
        10.0, "weight of the consistency term in the first round (b_0)", low=0, off=0.0, quick=1.0
    )
    decay: float = hp(0.98, "factor per round of both weights (d)", low=0, high=1)
    paper_loss: bool = hp(False, "generated features weigh 1, no consistency term")
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
    gen_optimizer: str = hp("adam", "what trains generators", choices=("adam", "sgd"))
    gen_lr: float = hp(3e-4, "learning rate of generators", low=0)
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
        return Optimizer(self.gen_optimizer, weight_decay=self.gen_weight_decay)

    def scope(self, name: str, module: nn.Module) -> Scope:
        """Everything travels, except running statistics where they stay with the client."""
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        statistic = name.rpartition(".")[2] in dict(module.named_buffers(recurse=False))
        return Scope("kept" if self.bn == "client" and norm and statistic else "both")

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """Room for each client's generator and its optimizer; they are drawn when first trained."""
        owners = rows.assign(facts.clients)
        like = next(iter(params.values()), torch.zeros(()))
        key = torch.zeros(len(owners), dtype=torch.int64, device=like.device)
        drawn = self.generator.initial(key, facts.classes, self.hidden, facts.width, like.dtype)
        generators = map_tree(torch.zeros_like, drawn)
        memory = self.optimizer.init(split(generators)[0], rows=len(owners))
        tensors = with_prefix("generator", generators) | with_prefix("optimizer", memory)
        if self.label_weights == "counts":
            tensors["available"] = like.new_ones(facts.classes)
        return State(tensors, {"rounds": 0, **owners})

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The client's generator, and for how many rounds there have been any."""
        own = row(under("generator", server.tensors), rows.rows_of(server.numbers)[client])
        payload = with_prefix("generator", own)
        if self.label_weights == "counts":
            payload["available"] = server.tensors["available"]
        return State(payload, {"rounds": server.numbers["rounds"]})

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """The participants' generators go on learning from the models that they just sent."""
        if not uploads.model or len(uploads.clients) < 2:  # nothing, or nobody, to learn from
            return new, server
        owners, rounds = rows.rows_of(server.numbers), server.numbers["rounds"]
        generators, memory = (under(n, server.tensors) for n in ("generator", "optimizer"))
        if rounds == 0:
            generators = self.generator.renewed(generators, rows.keys_of(key, "initial", owners))
        at = [owners[c] for c in uploads.clients]
        params, buffers = split(rows.take(generators, at))
        weight, available = self._weights_of_heads(uploads, params)

        def draw(key: Tensor) -> Tree:
            y = draw_labels(keys.fold_in(key, "labels"), self.gen_batch, available)
            return {"y": y, **self.generator.draw(key, self.gen_batch, params)}

        done = fit(
            self._contest(uploads, net, weight),
            params,
            self.gen_steps,
            self.optimizer,
            rows.keys_of(key, "train", uploads.clients),
            lr=self.gen_lr * self.gen_decay**rounds,
            buffers=buffers,
            state=rows.take(memory, at),
            rest={"me": torch.eye(len(at)).to(weight)},
            draw=draw,
        )
        tensors = {
            **with_prefix("generator", rows.put(generators, at, {**done.params, **done.buffers})),
            **with_prefix("optimizer", rows.put(memory, at, done.state)),
        }
        if self.label_weights == "counts":
            tensors["available"] = available
        return new, State(tensors, {**server.numbers, "rounds": rounds + 1})

    def _weights_of_heads(self, uploads: Uploads, params: Tree) -> tuple[Tensor, Tensor]:
        """How much heads count for each class [K, C], and the classes that anybody has [C]."""
        if self.label_weights == "counts":
            counts = uploads.extras["counts"]
            return counts / counts.sum(dim=0), (counts.amax(dim=0) > 1).to(counts)
        weight = params["mean.bias"].new_ones(len(uploads.clients), self.generator.classes(params))
        return weight, weight[0]

    def _contest(self, uploads: Uploads, net: Net, weight: Tensor) -> Loss:
        """The loss of one participant's generator, against the heads of all."""
        contest = Contest(self.grl, self.repulsion, self.schedule == "alternate")
        heads = every_head(net, uploads.model)

        def loss(tensors: Tree, rest: Tree, key: Tensor, step: Tensor) -> Tensor:
            made = self.generator(tensors, rest["y"], rest, training=True)
            value = contest(heads(made.z), rest["y"], rest["me"], weight, uploads.total, step)
            if self.kl_weight == 0:
                return value
            return value + self.kl_weight * divergence(made.mean, made.log_variance).mean()

        return loss

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Cross-entropy on generated features; consistency with those of the batch's labels."""
        if ctx.stage != "train":
            return {}
        rounds, like = ctx.received["rounds"], ctx.received["generator/mean.bias"]
        alpha = self._weight(self.alpha, rounds, like) if self.alpha else None
        beta = None
        if self.beta and not self.paper_loss:
            beta = self._weight(self.beta, rounds, like)
        return generated_terms(self.generator, self.gen_batch, (alpha, beta), out, y, ctx, net)

    def _weight(self, start: float, rounds: Tensor, like: Tensor) -> Tensor:
        """A term's weight in a round; 0 in the first, when no generator is trained yet."""
        weight = falling(start, self.decay, rounds, like)
        return torch.where(rounds > 0, 1.0, weight) if self.paper_loss else weight

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """With weights by counts, one more than the samples of each class."""
        if self.label_weights == "uniform":
            return Report()
        return Report(individual={"counts": 1.0 + class_counts(data, ctx.facts.classes, ctx.lr)})
