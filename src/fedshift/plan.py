"""What is the same for every trip of a run: the built model, who trains and owns each tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from fedshift import keys
from fedshift.compose import Composed
from fedshift.data.augment import Pipeline
from fedshift.draws import uses_randomness
from fedshift.errors import BadData, BadModel
from fedshift.federation import Facts, Federation
from fedshift.method import Phase, Scope
from fedshift.models.contract import first_line
from fedshift.models.probing import unkeyed
from fedshift.models.spec import seeded
from fedshift.net import clone, eval_mode, measure, owners, tensors_of
from fedshift.optim import Optimizer
from fedshift.pooling import quicken
from fedshift.privacy import Privacy
from fedshift.protocol import Protocol
from fedshift.tree import Tree

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bf16": torch.float32,  # of weights and sums; layers compute in bfloat16
    "tf32": torch.float32,  # of which products on a GPU look at the first 10 bits of each factor
}


@contextmanager
def precision(dtype: str = "float32") -> Iterator[None]:
    """Let GPUs compute float32 in TF32 where it was asked for alone.

    torch allows it for convolutions by default.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


@dataclasses.dataclass(frozen=True)
class Plan:
    """A method, a model built for it, and everything that follows from the two.

    Args:
        model: built by the method, on the device, in the run's type.
        scopes: for every tensor of the model, where it travels and which group trains it.
        modes: for every module, the group whose phases put it in train mode.
        phases: the gradient steps of one local step.
        terms: for each phase, the loss terms that other phases name (so that "*" leaves them out).
        taps: stages whose outputs the losses look at.
        random: whether the model's forward draws random numbers (dropout).
        used: names of the tensors that a prediction looks at (not those of attached networks).
        unkeyed: draws of the model that no key reaches (dropout inside nn.LSTM), in words.
        autocast: compute in bfloat16, keep everything else in float32.
        privacy: clipping and noise of what clients upload (None: neither).
    """

    method: Composed
    model: nn.Module
    facts: Facts
    protocol: Protocol
    pipeline: Pipeline
    device: torch.device
    dtype: torch.dtype
    autocast: bool
    scopes: Mapping[str, Scope]
    modes: Mapping[str, str]
    phases: tuple[Phase, ...]
    named_terms: frozenset[str]
    taps: tuple[str, ...]
    random: bool
    unkeyed: tuple[str, ...]
    used: frozenset[str]
    privacy: Privacy | None = None

    @property
    def tensors(self) -> Tree:
        """The model's tensors (the trip's working copy in the loop engine)."""
        return tensors_of(self.model)

    @property
    def trained(self) -> dict[str, tuple[str, ...]]:
        """Names of the parameters that each group trains."""
        groups: dict[str, list[str]] = {}
        params = dict(self.model.named_parameters())
        for name, scope in self.scopes.items():
            if name in params and scope.group != "frozen":
                groups.setdefault(scope.group, []).append(name)
        return {group: tuple(names) for group, names in groups.items()}

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the parameters that are trained and travel both ways."""
        names = {n for group in self.trained.values() for n in group}
        return tuple(n for n, s in self.scopes.items() if n in names and s.share == "both")

    def names(self, *shares: str) -> tuple[str, ...]:
        """Names of the tensors with one of these shares."""
        return tuple(n for n, s in self.scopes.items() if s.share in shares)

    @property
    def down(self) -> tuple[str, ...]:
        """Names that the server sends."""
        return self.names("both", "down")

    @property
    def up(self) -> tuple[str, ...]:
        """Names that clients send."""
        return self.names("both", "up")

    @property
    def own(self) -> tuple[str, ...]:
        """Names that a client keeps for itself between rounds."""
        return self.names("kept", "up")

    def optimizer(self, phase: Phase) -> Optimizer:
        """The optimizer of a phase: the protocol's, or one of its own."""
        p = self.protocol
        return Optimizer(
            phase.optimizer or p.optimizer,
            momentum=p.momentum,
            nesterov=p.nesterov,
            weight_decay=p.weight_decay,
            eps=p.eps,
        )


def make(
    facts: Facts,
    pipeline: Pipeline,
    method: Composed,
    protocol: Protocol,
    model: nn.Module,
    device: torch.device,
    dtype: str,
    seed: int,
    privacy: Privacy | None = None,
) -> Plan:
    """Build the model for the method and derive who trains and owns what.

    `model` fits the contract and is not changed. What the method attaches gets its initial weights
    from the seed, so that everybody who builds the plan has the same.
    """
    method.check_task(facts.task)
    base = clone(model).to(device=device, dtype=DTYPES[dtype])
    try:
        width, shapes = measure(base, facts.shape)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, BadModel):
            raise
        raise BadModel(
            f"the model does not run in {dtype} ({first_line(error)}): let it keep to the type and "
            "device of its input"
        ) from error
    facts = dataclasses.replace(facts, width=width, stage_shapes=shapes, pipeline=pipeline)
    with seeded(keys.fold(seed, "build")):
        built = method.build(base, facts).to(device=device, dtype=DTYPES[dtype])
    empty = {n: torch.empty_like(t, device="meta") for n, t in tensors_of(built).items()}
    facts = dataclasses.replace(facts, tensors=empty)
    quicken(built)
    probe = torch.zeros((2, *facts.shape), device=device, dtype=DTYPES[dtype])
    phases = method.phases()
    owned = owners(built)
    scopes = {name: method.scope(name, module) for name, module in owned.items()}
    plan = Plan(
        method=method,
        model=built,
        facts=facts,
        protocol=protocol,
        pipeline=pipeline,
        device=device,
        dtype=DTYPES[dtype],
        autocast=dtype == "bf16",
        scopes=scopes,
        modes=_modes(built, scopes),
        phases=phases,
        named_terms=frozenset(t for p in phases for t in p.terms if t != "*"),
        taps=method.taps(tuple(getattr(built, "stages", ()))),
        random=bool(uses_randomness(built, probe)) or _attached_dropout(built),
        unkeyed=tuple(unkeyed(built, probe)),
        used=_used(built, probe),
        privacy=privacy,
    )
    for phase in phases:
        if not set(phase.groups) & set(plan.trained):
            raise BadModel(
                f"phase '{phase.name}' of '{method.name}' trains {' and '.join(phase.groups)}, but "
                f"parameters are there of {' and '.join(plan.trained) or 'no group at all'}: name "
                "a group that `scope` gives, or take a model that has something to train"
            )
    return plan


def _used(model: nn.Module, x: torch.Tensor) -> frozenset[str]:
    """Names of the tensors of modules that run when features and head do."""
    ran: set[int] = set()
    hooks = [
        m.register_forward_hook(lambda module, *_: ran.add(id(module))) for m in model.modules()
    ]
    try:
        with torch.no_grad(), eval_mode(model):
            model.head(model.features(x))  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
    whole = id(model)  # features and head may be called without the model's own forward
    return frozenset(n for n, m in owners(model).items() if id(m) in ran or id(m) == whole)


def _attached_dropout(model: nn.Module) -> bool:
    """Dropout anywhere, also in attached networks that a plain forward does not reach."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())


def _modes(model: nn.Module, scopes: Mapping[str, Scope]) -> dict[str, str]:
    """The group that decides a module's mode: that of its tensors, else of its surroundings."""
    group: dict[str, str] = {}
    for path, module in model.named_modules():
        own = list(dict(module.named_parameters()) or dict(module.named_buffers()))
        names = [f"{path}.{n}" if path else n for n in own]
        groups = {scopes[n].group for n in names if n in scopes}
        parent = group.get(path.rpartition(".")[0], "model")
        group[path] = groups.pop() if len(groups) == 1 else parent
        if group[path] == "frozen":
            group[path] = "model"
    return group


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_batches(model: nn.Module, federation: Federation, protocol: Protocol) -> None:
    """Refuse batches of one sample where a batch norm would have to learn from them."""
    norms = [name for name, m in model.named_modules() if isinstance(m, _BATCH_NORMS)]
    if not norms:
        return
    if protocol.batch == 1:
        raise BadModel(
            f"batch norm '{norms[0]}' would see a batch of one: set the batch size to 2 or more, "
            "or take a model with group norm"
        )
    for client in federation.clients:
        if len(client.train) == 1:
            raise BadData(
                f"client '{client.name}' has one training sample, and batch norm '{norms[0]}' "
                "would see a batch of one: give it more data, or leave it out"
            )
