"""A StarGAN on vectors: one translator takes a vector of any domain into any other.

Translator and critic are plain functions of named tensors, so that whoever holds a translator's
tensors can use it (also one per client, under vmap). Trained by the losses of StarGAN (Choi et al.,
CVPR 2018): a critic that tells real from made and one domain from another, and a translator that
fools it and can take its vectors back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift import keys
from fedshift.draws import keyed
from fedshift.models.spec import seeded
from fedshift.optim import Optimizer
from fedshift.tree import Tree

Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # vectors, classes, domains, target domains
Heads = Callable[[Tensor], Tensor]  # [B, D] -> [K, B, classes]
_TINY = 1e-12  # under a root, whose slope at 0 is infinite


def translator(width: int, domains: int, hidden: int) -> Tree:
    """A fresh translator for vectors of a width: three layers, told both domains as one-hot.

    >>> sum(t.numel() for t in translator(512, 3, hidden=1024).values())
    2109952
    """
    sizes = {"one": (width + 2 * domains, hidden), "two": (hidden, hidden), "out": (hidden, width)}
    return _fresh(sizes)


def critic(width: int, domains: int, hidden: int) -> Tree:
    """A fresh critic: two layers, then a score and the logits of the domains.

    >>> sum(t.numel() for t in critic(512, 3, hidden=1024).values())
    1055236
    """
    half = hidden // 2
    sizes = {
        "one": (width, hidden),
        "two": (hidden, half),
        "real": (half, 1),
        "domain": (half, domains),
    }
    return _fresh(sizes)


_NETWORKS = {"translator": translator, "critic": critic}


def translate(
    t: Tree, z: Tensor, source: Tensor, target: Tensor, bounded: bool = True, dropout: float = 0.0
) -> Tensor:
    """Vectors [B, D] of the source domains [B] taken to the target domains [B].

    `bounded` ends in tanh, which keeps the results between -1 and 1.
    """
    domains = (t["one.weight"].shape[1] - z.shape[1]) // 2
    x = torch.cat([z, *(F.one_hot(d, domains).to(z.dtype) for d in (source, target))], dim=1)
    x = _dropped(_layer(t, "one", x), dropout)
    x = F.linear(_layer(t, "two", x), t["out.weight"], t["out.bias"])
    return torch.tanh(x) if bounded else x


def judge(t: Tree, x: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """The critic's score [B] (large: real) and its logits of the domains [B, domains]."""
    x = _layer(t, "two", _dropped(_layer(t, "one", x), dropout))
    score = F.linear(x, t["real.weight"], t["real.bias"]).squeeze(1)
    return score, F.linear(x, t["domain.weight"], t["domain.bias"])


def gradient_penalty(
    score: Callable[[Tensor], Tensor], real: Tensor, made: Tensor, at: Tensor, mixed: bool = False
) -> Tensor:
    """The mean squared distance of the score's slope from 1, between real and made vectors.

    Args:
        score: [N, D] -> [N].
        real, made: [B, D].
        at: where on the line between the two, [B].
        mixed: put every coefficient to every row and take one slope for all rows of a coefficient,
            as a code for images does that is given vectors.

    >>> three_four = lambda x: 3 * x[:, 0] + 4 * x[:, 1]
    >>> gradient_penalty(three_four, torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2)).item()
    16.0
    """
    at = at.to(real.dtype).reshape(-1, 1, 1)
    if not mixed:
        real, made = real[:, None], made[:, None]
    between = (at * real + (1.0 - at) * made).detach().requires_grad_()  # [B, 1 or B, D]
    (slope,) = torch.autograd.grad(score(between.flatten(0, 1)).sum(), between, create_graph=True)
    return ((slope.square().sum(dim=(1, 2)) + _TINY).sqrt() - 1.0).square().mean()


@dataclass(frozen=True)
class StarGAN:
    """How a translator is trained.

    Args:
        hidden, dropout, bounded: of the networks.
        kind: "wgan-gp" (Gulrajani et al., NeurIPS 2017), or "vanilla": cross-entropies of the
            score, where the translator raises the chance of being taken for real.
        steps, batch, lr: of Adam (betas 0.5 and 0.999); the critic takes a step in each.
        every: the translator takes a step in each so many.
        domain, cycle, penalty, label: weights of telling domains apart, of coming back, of the
            gradient penalty, and of keeping the label in the eyes of all heads.
        mixed: the gradient penalty as released, see `gradient_penalty`.
        one_class: all vectors of a batch are of one class.
        eps: of Adam.
    """

    hidden: int = 1024
    dropout: float = 0.5
    bounded: bool = True
    kind: str = "wgan-gp"
    steps: int = 10_000
    batch: int = 16
    lr: float = 1e-4
    every: int = 5
    domain: float = 1.0
    cycle: float = 10.0
    penalty: float = 10.0
    label: float = 0.1
    mixed: bool = False
    one_class: bool = False
    eps: float = 1e-8

    def train(self, z: Tensor, y: Tensor, d: Tensor, domains: int, heads: Heads, key: int) -> Tree:
        """A translator for vectors z [N, D] of classes y [N] and domains d [N]."""
        with seeded(keys.fold(key, "networks")):
            nets = {n: f(z.shape[1], domains, self.hidden) for n, f in _NETWORKS.items()}
        adam = Optimizer("adam", betas=(0.5, 0.999), eps=self.eps)
        players = {n: {m: t.to(z) for m, t in net.items()} for n, net in nets.items()}
        memory = {n: adam.init(net) for n, net in players.items()}
        sample = self._sampler(y)
        root = keys.as_tensor(key, z.device)
        for step in range(self.steps):
            here = keys.fold_in(root, step)
            at = sample(keys.fold_in(here, "sample"))
            batch = (
                z[at],
                y[at],
                d[at],
                d[at][keys.permutation(keys.fold_in(here, "target"), len(at))],
            )
            for name, loss in (("critic", self.critic_loss), ("translator", self.translator_loss)):
                if name == "critic" or (step + 1) % self.every == 0:
                    own = {m: t.requires_grad_() for m, t in players[name].items()}
                    with torch.enable_grad(), keyed(keys.fold_in(here, name)):
                        value = loss(players, batch, heads, keys.fold_in(here, "between"))
                        grads = torch.autograd.grad(value, list(own.values()))
                    players[name] = {m: t.detach() for m, t in own.items()}
                    adam.update(players[name], dict(zip(own, grads)), memory[name], self.lr)
        return players["translator"]

    def critic_loss(self, nets: dict[str, Tree], batch: Batch, heads: Heads, key: Tensor) -> Tensor:
        """Real against made, domains against each other, and the slope of the score."""
        z, _, d, target = batch
        with torch.no_grad():
            made = self._made(nets, z, d, target)
        scores, seen = self._judged(nets, torch.cat([z, made]))
        real, fake = scores.chunk(2)
        loss = self.domain * F.cross_entropy(seen[: len(z)], d)
        if self.kind == "vanilla":
            return loss + F.softplus(-real).mean() + F.softplus(fake).mean()
        at = keys.uniform(key, (len(z),), z.dtype)
        slope = gradient_penalty(lambda x: self._judged(nets, x)[0], z, made, at, self.mixed)
        return loss - real.mean() + fake.mean() + self.penalty * slope

    def translator_loss(
        self, nets: dict[str, Tree], batch: Batch, heads: Heads, key: Tensor
    ) -> Tensor:
        """Taken for real, for the target domain and for the old class, and able to come back."""
        z, y, d, target = batch
        made = self._made(nets, z, d, target)
        score, seen = self._judged(nets, made)
        fooled = F.softplus(-score) if self.kind == "vanilla" else -score
        loss = fooled.mean() + self.domain * F.cross_entropy(seen, target)
        loss = loss + self.cycle * (z - self._made(nets, made, target, d)).abs().mean()
        if self.label:
            logits = heads(made)
            each = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)), reduction="none")
            loss = loss + self.label * each.sum() / len(z)
        return loss

    def _made(self, nets: dict[str, Tree], z: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return translate(nets["translator"], z, source, target, self.bounded, self.dropout)

    def _judged(self, nets: dict[str, Tree], x: Tensor) -> tuple[Tensor, Tensor]:
        return judge(nets["critic"], x, self.dropout)

    def _sampler(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        """From a key to the positions of a batch, drawn with replacement."""
        if not self.one_class:
            return lambda key: keys.integers(key, len(y), (self.batch,))
        order = torch.argsort(y, stable=True)
        counts = torch.bincount(y)
        first = counts.cumsum(0) - counts

        def sample(key: Tensor) -> Tensor:
            chosen = y[keys.integers(keys.fold_in(key, "class"), len(y))]
            u = keys.uniform(key, (self.batch,), torch.float64)
            return order[first[chosen] + (u * counts[chosen]).long()]

        return sample


def _fresh(sizes: dict[str, tuple[int, int]]) -> Tree:
    """Linear layers as torch begins them, those named by a number with a layer norm behind."""
    found: Tree = {}
    for name, (inputs, outputs) in sizes.items():
        parts: dict[str, nn.Module] = {name: nn.Linear(inputs, outputs)}
        if name in ("one", "two"):
            parts[f"{name}.norm"] = nn.LayerNorm(outputs)
        for path, module in parts.items():
            found |= {f"{path}.{n}": p.detach() for n, p in module.named_parameters()}
    return found


def _layer(t: Tree, name: str, x: Tensor) -> Tensor:
    x = F.leaky_relu(F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"]), 0.2)
    weight = t[f"{name}.norm.weight"]
    return F.layer_norm(x, tuple(weight.shape), weight, t[f"{name}.norm.bias"])


def _dropped(x: Tensor, p: float) -> Tensor:
    return F.dropout(x, p) if p else x
