"""What a method is: a frozen dataclass of hyperparameters with hooks, each with FedAvg's behaviour.

A method holds no state. Four kinds of state with four names are passed in and out: `server` (stays
at the server), `received` (came with the payload), `kept` (private to a client between rounds) and
`work` (lives for one trip; engines own it). Client hooks see one client, in tensors only, and never
branch on a tensor: the same code runs once per client or mapped over all of them.

How several methods become one is in `fedshift.compose`; who calls the hooks when, in
`fedshift.trip` and `fedshift.aggregate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from fedshift.errors import BadValue
from fedshift.federation import Facts
from fedshift.hparam import check_fields
from fedshift.protocol import Protocol
from fedshift.task import TASKS
from fedshift.tree import Tree

if TYPE_CHECKING:
    from fedshift.compose import Composed
    from fedshift.net import Net, Output

Number = int | float
SHARES = ("both", "down", "up", "kept", "work")  # from the freest to the strictest


@dataclasses.dataclass(frozen=True)
class State:
    """Named tensors and named numbers, and nothing else; refused at construction otherwise.

    >>> State({"c": torch.zeros(2)}, {"round": 3}).numbers["round"]
    3
    """

    tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, Number] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise BadValue(
                    f"{name!r} is a {type(tensor).__name__}: only tensors may have a name here"
                )
        for name, number in self.numbers.items():
            if (
                not isinstance(name, str)
                or isinstance(number, bool)
                or not isinstance(number, (int, float))
            ):
                raise BadValue(
                    f"{name!r} is a {type(number).__name__}: only int and float are numbers here"
                )


Payload = State  # what the server sends to one client beyond the shared tensors


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where a tensor of the model travels, and which phase's optimizer trains it.

    `share`: "both" ways, only "down", only "up" (the client keeps its own), "kept" (never sent), or
    "work" (never sent either, and every trip begins with the values that `build` gave it).
    `group`: "model" unless an attached network is trained by a phase of its own; "frozen" is
    trained by nobody.
    """

    share: str = "both"
    group: str = "model"

    def __post_init__(self) -> None:
        if self.share not in SHARES:
            raise BadValue(f"scope share '{self.share}': choose from {', '.join(SHARES)}")


@dataclasses.dataclass(frozen=True)
class Phase:
    """One gradient step among those that a local step is made of.

    Args:
        name: phases of one name fuse when methods are combined.
        groups: the groups of tensors that this phase trains.
        terms: the loss terms that it sums; "*" stands for those that no phase names.
        sign: +1 descends, -1 ascends.
        every, offset: it runs at local steps t with t % every == offset.
        together: takes its gradient at the same tensors as the phase before it.
        train_mode: the groups in train mode, whose buffers move (None: the trained ones).
        lr, optimizer: this phase's own rate and optimizer (None: the protocol's).
    """

    name: str = "model"
    groups: tuple[str, ...] = ("model",)
    terms: tuple[str, ...] = ("*",)
    sign: float = 1.0
    every: int = 1
    offset: int = 0
    together: bool = False
    train_mode: tuple[str, ...] | None = None
    lr: float | None = None
    optimizer: str | None = None

    def due(self, step: int) -> bool:
        """Whether the phase runs at a local step."""
        return step % self.every == self.offset

    @property
    def training(self) -> tuple[str, ...]:
        """The groups in train mode."""
        return self.groups if self.train_mode is None else self.train_mode


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run of rounds of one kind.

    Args:
        name: "train" for the rounds that the protocol counts; others run before or behind it.
        rounds: how many.
        program: "train" (local steps, aggregated), "visit" (local steps whose result is only
            looked at by `report`), "collect" (no steps, only `report`), or "tune" (local steps
            whose result each client keeps as its own model and the server never sees).
        everyone: all clients take part, whatever the protocol samples.
        epochs: local epochs per round, where they differ from the protocol's.
    """

    name: str
    rounds: int
    program: str = "train"
    everyone: bool = False
    epochs: int = 0

    def steps(self, protocol: Protocol, n: int) -> int:
        """Local steps of a round for a client of n training samples.

        >>> Stage("warm-up", 1, "visit", epochs=3).steps(Protocol(batch=10), n=25)
        9
        """
        return self.epochs * protocol.epoch_length(n) if self.epochs else protocol.local_work(n)


@dataclasses.dataclass(frozen=True)
class Report:
    """What goes up beside the shared tensors, by how the server may use it, and what is kept.

    `mean` and `sum` are only ever needed combined over clients (so they can be summed securely);
    `individual` uploads are looked at one by one.
    """

    mean: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    sum: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    individual: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    keep: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ctx:
    """What a client hook may look at; all of it tensors, except for the last fields.

    Args:
        received: what `broadcast` sent, under the method's own names (numbers as 0-d tensors).
        kept: what this client keeps for this method.
        fixed: what `start` returned.
        initial: the model's tensors as the trip began.
        round, step, epoch: counted from 0, `step` and `epoch` within the trip.
        steps: how many local steps this client takes.
        samples: how many training samples it has.
        lr: the learning rate of this round.
        key: this method's key for this client, round and step; fold purposes into it.
        shared: names of the parameters that are trained and shared.
        stage, phase: the names of what is going on.
    """

    received: Tree
    kept: Tree
    fixed: Tree
    initial: Tree
    round: Tensor
    step: Tensor
    epoch: Tensor
    steps: Tensor
    samples: Tensor
    lr: Tensor
    key: Tensor
    shared: tuple[str, ...]
    stage: str
    phase: str
    facts: Facts
    protocol: Protocol

    def replace(self, **changes: object) -> Ctx:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Uploads:
    """What came back in a round, stacked along a first axis in the order of `clients`.

    Args:
        clients: names of those whose upload counts.
        samples: their numbers of training samples [K].
        weights: their weights in means [K], which sum to 1.
        model: the uploaded tensors of the model [K, ...].
        extras: what this method's `report` sent [K, ...].
        combined: its `mean` and `sum` tensors after combination.
        total: how many clients the federation has.
        round: the round, counted from 0.
        stage: the name of the stage that it is of.
    """

    clients: tuple[str, ...]
    samples: Tensor
    weights: Tensor
    model: Tree
    extras: Tree
    combined: Tree
    total: int
    round: int
    stage: str = "train"


class Data(Interface):
    """A client's training data as `start` and `report` see them: in order, without augmentation."""

    def fold(
        self, f: Callable[[Tree, Tensor, Tensor, Tensor], Tree], start: Tree, batch: int = 256
    ) -> Tree:
        """Pass once over the data: `acc = f(acc, x, y, mask)`; mask is False on padding."""
        ...


class Objective(Interface):
    """A phase's loss as a function of the tensors it trains."""

    def __call__(self, params: Tree) -> Tensor:
        """The loss at these tensors; buffers stay as they are."""
        ...

    def grad(self, params: Tree) -> Tree:
        """Its gradient; the first call of a step moves the buffers, later ones leave them."""
        ...


@dataclasses.dataclass(frozen=True)
class Method:
    """The base of all methods; unchanged, it is FedAvg.

    Class attributes: `name` (as on the command line), `paper` (where it is from), `view` (which
    model its scores are of: "global" or "personal"), `example_model` (one that shows it at its
    best in a small test), `stackable` (False: runs in the loop engine only), `pooled` (trains on
    everybody's data at one place), `taps` (stages whose outputs its loss looks at; "*" for all),
    `tasks` (what it can learn; a method that needs one label, or one vector of features, for each
    sample leaves segmentation out),
    `scores_trained` (a client's personal score is that of its model as it left training),
    `content` (what its payloads and uploads are, by the beginning of their names: "statistics",
    "averaged data", …; what is not named counts as parameters).
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = ""
    view: ClassVar[str] = "global"
    example_model: ClassVar[str] = "small-cnn"
    stackable: ClassVar[bool] = True
    pooled: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = TASKS
    taps: ClassVar[tuple[str, ...]] = ()
    scores_trained: ClassVar[bool] = False
    content: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def __add__(self, other: Method) -> Composed:
        from fedshift.compose import Composed

        return Composed.of(self, other)

    # -- declarations: run identically everywhere, see no data ---------------------------------

    def build(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Insert layers after stages, replace norms, attach networks; may change `model` itself."""
        return model

    def scope(self, name: str, module: nn.Module) -> Scope:
        """Where the tensor `name`, which `module` owns, travels and who trains it."""
        return Scope()

    def init_server(self, params: Tree, facts: Facts) -> State:
        """The server's state at the start; `params` are the trained, shared parameters."""
        return State()

    def init_client(self, params: Tree, facts: Facts) -> State:
        """A client's kept state before its first round (equal for all clients)."""
        return State()

    def phases(self) -> tuple[Phase, ...]:
        """The gradient steps that make one local step."""
        return (Phase(),)

    def stages(self, protocol: Protocol) -> tuple[Stage, ...]:
        """The kinds of rounds, in order."""
        return (Stage("train", protocol.rounds),)

    # -- server --------------------------------------------------------------------------------

    def broadcast(self, server: State, client: str, round: int) -> Payload:
        """What goes to a client beyond the shared tensors."""
        return State()

    def weights(self, uploads: Uploads, server: State) -> Tensor | None:
        """One weight per client (None: the protocol's); they are normalised to sum to 1."""
        return None

    def combine(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """How a tensor of the model is combined over clients (None: the weighted mean)."""
        return None

    def element_weights(self, name: str, uploads: Uploads) -> Tensor | None:
        """Weights [K, ...] of one tensor's elements, which sum to 1 over clients.

        None: the clients' own. A rule of `combine` for the same tensor goes before.
        """
        return None

    def combine_extra(self, name: str, stacked: Tensor, weights: Tensor) -> Tensor | None:
        """How an upload of this method is combined (None: as it was declared, mean or sum)."""
        return None

    def server_step(self, old: Tree, new: Tree, server: State) -> tuple[Tree, State]:
        """From the combined tensors to the next global ones: momentum, a server optimizer."""
        return new, server

    def after(
        self, new: Tree, uploads: Uploads, server: State, net: Net, key: int
    ) -> tuple[Tree, State]:
        """What the server learns or trains once the global tensors stand.

        `net` is the model with the new tensors, in eval mode; `net.at(…)` takes others.
        """
        return new, server

    # -- client --------------------------------------------------------------------------------

    def start(self, ctx: Ctx, net: Net, data: Data) -> Tree:
        """Tensors that stay fixed during the trip."""
        return {}

    def batch(self, x: Tensor, y: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor]:
        """Change a batch; y [B] may become soft labels [B, classes].

        Where pixels are labelled, y is [B, H, W], and soft labels are [B, classes, H, W].
        """
        return x, y

    def loss(self, out: Output, y: Tensor, ctx: Ctx, net: Net) -> dict[str, Tensor]:
        """Loss terms to add to the task's own, which is "task" (returned here, it is replaced)."""
        return {}

    def gradient(self, loss: Objective, params: Tree, ctx: Ctx) -> Tree:
        """The gradient of a phase, where it is not the plain one."""
        return loss.grad(params)

    def correct(self, grads: Tree, params: Tree, ctx: Ctx) -> Tree:
        """Change the gradients before the optimizer sees them."""
        return grads

    def report(self, ctx: Ctx, net: Net, data: Data) -> Report:
        """What goes up and what is kept, after the last local step."""
        return Report()

    # -- prediction ----------------------------------------------------------------------------

    def predict(self, net: Net, x: Tensor, view: str) -> Tensor:
        """Logits of a batch, in evaluation."""
        return net(x)


def overrides(method: Method, hook: str) -> bool:
    """Whether a method has its own version of a hook.

    >>> overrides(Method(), "loss")
    False
    """
    return getattr(type(method), hook) is not getattr(Method, hook)


def names_of(state: State) -> tuple[str, ...]:
    """All names of a state, tensors first."""
    return (*state.tensors, *state.numbers)


def tensors_of(state: State, dtype: torch.dtype, device: torch.device) -> Tree:
    """A state as tensors only: numbers become 0-d tensors, floats in the run's type."""
    numbers = {
        name: torch.tensor(v, dtype=torch.int64 if isinstance(v, int) else dtype, device=device)
        for name, v in state.numbers.items()
    }
    return {**state.tensors, **numbers}
