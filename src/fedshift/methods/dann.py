"""# DANN: features that do not tell whose they are

Clients whose inputs look different are domains. A discriminator, which travels with the model,
learns to tell from features which client they are of, and the features learn to fool it: what is
left in them holds for all. The paper is Ganin et al., Domain-Adversarial Training of Neural
Networks, JMLR 2016, here with a client for each domain, as in the baselines of FedBR (Guo, Tang and
Lin, ICML 2023).

## The loss

With features z of the batch of client k and the discriminator d, a network of three layers,

    d:        CE(d(z), k)
    features: CE(h(z), y) - lam CE(d(z), k)                      (`fool="reversal"`)

Both move in one step (`form="reversal"`), which is Ganin's reversed gradient: the features go
against lam times what d descends. With `form="alternate"` they take turns, the model first in every
round, so that the classifier learns in half of the local steps. d trains with the protocol's rate.

The reversed term has no lower bound. Bounded are `fool="entropy"`, which asks for an undecided d,
and `fool="non-saturating"`, -log(1 - p_k) for the probability p_k that d gives to client k; lam
weighs them too.

## When to use it

With few clients, each of which takes part often, that have the same labels and other inputs. Mind
that within a client the label of the discriminator never changes: in a long trip it learns to
answer k whatever it sees, and only the mean over clients makes it look at features again. So few
local steps and a small lam are safer.

## What crosses the wire

Both ways: the discriminator, with 512 features, 10 clients and 256 hidden units 199,690 numbers.
Down: the client's number.

## Differences from the released code

- Ganin's lam grows over training; here, as in FedBR's code, it is constant.
- FedBR's code takes turns (`form="alternate"`), over rounds as the optimizer counts; here they
  begin anew in each round.
- There, the label of a domain belongs to a place that clients take in turn, and not to a client.
  Here it is the client's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.federation import Facts
from fedshift.hparam import hp
from fedshift.method import Ctx, Method, Phase, Scope, State
from fedshift.parts import rows
from fedshift.parts.confusion import CONFUSIONS
from fedshift.parts.contrast import projector
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.net import Net, Output

CRITIC = "dann_discriminator"


@dataclass(frozen=True)
class DANN(Method):
    """A discriminator of clients, which features learn to fool.

    >>> [len(DANN(form=form).phases()) for form in ("reversal", "alternate")]
    [1, 2]
    """

    name: ClassVar[str] = "dann"
    paper: ClassVar[str] = (
        "Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016; with clients for "
        "domains, Guo et al., FedBR, ICML 2023"
    )

    lam: float = hp(0.01, "weight of fooling the discriminator (lambda)", low=0, off=0.0)
    form: str = hp(
        "reversal",
        "both learn in one step, or the model in even steps and the discriminator in odd ones",
        choices=("reversal", "alternate"),
    )
    fool: str = hp("reversal", "what fooling it is", choices=("reversal", *CONFUSIONS))
    hidden: int = hp(256, "width of the discriminator's hidden layers", low=1, quick=16)

    @property
    def _turns(self) -> bool:
        return self.form == "alternate"

    @property
    def _idle(self) -> bool:
        """Whether nobody would look at the discriminator."""
        return self.lam == 0 and not self._turns

    # -- declarations --------------------------------------------------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Attach the discriminator."""
        if not self._idle:
            model.add_module(CRITIC, projector(facts.width, self.hidden, len(facts.clients)))
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """The discriminator travels like the model; where they take turns, it learns apart."""
        return Scope(group=CRITIC if self._turns and name.startswith(f"{CRITIC}.") else "model")

    def phases(self) -> tuple[Phase, ...]:
        """One, or model and discriminator in turn."""
        if not self._turns:
            return (Phase(),)
        critic = Phase(CRITIC, (CRITIC,), ("domain",), every=2, offset=1, train_mode=("model",))
        return (Phase(every=2), critic)

    # -- server --------------------------------------------------------------------------------

    def init_server(self, params: Tree, facts: Facts) -> State:
        """The clients' numbers."""
        return State(numbers=rows.assign(facts.clients))

    def broadcast(self, server: State, client: str, round: int) -> State:
        """The client's number."""
        return State() if self._idle else State(numbers={"k": rows.rows_of(server.numbers)[client]})

    # -- client --------------------------------------------------------------------------------

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """The discriminator's loss, and that of features which fool it."""
        if self._idle or ctx.phase not in ("model", CRITIC):
            return {}
        k = ctx.received["k"].expand(len(out.x))
        terms = {}
        if ctx.phase == CRITIC or not self._turns:
            terms["domain"] = F.cross_entropy(net.call(CRITIC, out.z.detach()), k)
        if ctx.phase == "model":
            terms["fooling"] = self.lam * self._fooling(_as_it_is(net).call(CRITIC, out.z), k)
        return terms

    def _fooling(self, logits: Tensor, k: Tensor) -> Tensor:
        """What features descend, given what the discriminator says of them."""
        if self.fool == "reversal":
            return -F.cross_entropy(logits, k)
        return CONFUSIONS[self.fool](logits, k)


def _as_it_is(net: Net) -> Net:
    """The net with a discriminator that gets no gradient."""
    own = {n: t.detach() for n, t in net.tensors.items() if n.startswith(f"{CRITIC}.")}
    return net.aside(own)
