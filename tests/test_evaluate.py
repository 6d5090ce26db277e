"""Scores: what is summed up, of which model, and on whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedshift import evaluate, tree
from fedshift.evaluate import Score, Summary, summary
from fedshift.federation import Client, Federation, Samples
from fedshift.method import Method, Scope
from fedshift.net import insert_after
from tests.methods.test_battery import PROTOCOL, start
from tests.toys import ToyNet, federation

ONE = PROTOCOL.replace(rounds=1)


def test_summary():
    """0.5, 0.7 and 0.9: the spread over clients is divided by their number, sqrt(0.08 / 3)."""
    assert summary([0.5, 0.9, None, 0.7]) == Summary(0.7, 0.5, pytest.approx(0.163299316, abs=1e-9))
    assert summary([0.25]) == Summary(0.25, 0.25, 0.0)
    assert summary([None, None]) == summary([]) == Summary(None, None, None)


def test_a_score_by_view_and_split():
    score = Score("a", test=0.1, val=0.2, personal_test=0.3, personal_val=0.4)
    found = [score.of(view, split) for view in ("global", "personal") for split in ("test", "val")]
    assert found == [0.1, 0.2, 0.3, 0.4]


# -- pixels --------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Per-pixel logits: (0, x - 0.5). Features are the image, flattened; the head unfolds it."""

    stages = ()

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, z):
            x = z.reshape(len(z), 1, 1, 4) * self.scale - 0.5
            return torch.cat([torch.zeros_like(x), x], 1)

    def __init__(self) -> None:
        super().__init__()
        self.head = self.Head()

    def features(self, x):
        return x.flatten(1)


@pytest.mark.parametrize(("metric", "first"), [("dice", 0.666664), ("dice-all", 0.733331)])
@pytest.mark.parametrize("eval_batch", [512, 1])
def test_a_clients_segmentation_score_is_the_mean_over_its_images(metric, first, eval_batch):
    """The first image is that of `test_task`, the second is right."""
    x = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]], [[[1.0, 0.0, 0.0, 0.0]]]], dtype=torch.float64)
    y = torch.tensor([[[1, 0, 0, 0]], [[1, 0, 0, 0]]])
    s, none = Samples(x, y), Samples(x[:0], y[:0])
    clients = (Client("a", s, none, s), Client("b", s, none, none))
    fed = Federation("pixels", clients, ("back", "front"), task="segmentation", metric=metric)
    right = evaluate_with(Pixels().double(), fed, eval_batch)
    assert right[0].test == pytest.approx((first + 1) / 2, abs=1e-5)
    assert right[1].test is None
    assert right[0].val is None, "there are no such data"


def evaluate_with(model: nn.Module, fed: Federation, eval_batch: int) -> list[Score]:
    """Scores of a model that the run's own check, made for classification, would not take."""
    from types import SimpleNamespace

    from fedshift.compose import Composed

    plan = SimpleNamespace(
        model=model,
        method=Composed.of(Method()),
        pipeline=fed.pipeline,
        device=torch.device("cpu"),
        dtype=torch.float64,
        protocol=PROTOCOL.replace(eval_batch=eval_batch),
        facts=fed.facts(),
        names=lambda *shares: (),
    )
    return evaluate.evaluate(plan, dict(model.state_dict()), {}, fed.clients)


# -- which model ---------------------------------------------------------------------------------


def by_hand(tensors: dict[str, torch.Tensor], samples: Samples) -> float:
    net = ToyNet().double().eval()
    net.load_state_dict(tensors)
    with torch.no_grad():
        return (net(samples.x).argmax(1) == samples.y).double().mean().item()


@pytest.mark.parametrize("eval_batch", [512, 4])
def test_the_global_model_on_every_client(eval_batch):
    run = start("fedavg", ONE.replace(eval_batch=eval_batch)).play()
    scores = evaluate.evaluate(
        run.plan, run.progress.server.model, run.progress.kept, run.federation.clients
    )
    for score, client in zip(scores, run.federation.clients):
        assert score.test == pytest.approx(by_hand(run.progress.server.model, client.test))
        assert score.val == pytest.approx(by_hand(run.progress.server.model, client.val))
        assert score.personal_test is None, "nobody keeps anything"
    assert len({s.test for s in scores} | {s.val for s in scores}) > 1


def test_personal_tensors():
    """The global ones, with what is kept over them, with what was tuned over all."""
    one, two, three = (torch.tensor(float(k)) for k in (1, 2, 3))
    kept = {
        "model/b": two,
        "model/c": two,
        "tuned/c": three,
        "scaffold/a": three,
        "optimizer/x/a": three,
    }
    found = evaluate.personal_tensors({"a": one, "b": one, "c": one}, kept)
    assert found == {"a": one, "b": two, "c": three}


def test_scoring_moves_nothing():
    run = start("fedbn", ONE).play()
    digests = [
        tree.digest(run.progress.server.model),
        *map(tree.digest, run.progress.kept.values()),
    ]
    momentum = run.plan.model.get_submodule("conv.1").momentum
    clients = run.federation.clients
    evaluate.evaluate(run.plan, run.progress.server.model, run.progress.kept, clients)
    evaluate.evaluate_unseen(run.plan, run.progress.server.model, run.progress.kept, clients)
    assert digests == [
        tree.digest(run.progress.server.model),
        *map(tree.digest, run.progress.kept.values()),
    ]
    assert run.plan.model.get_submodule("conv.1").momentum == momentum == 0.1


def test_a_methods_own_prediction_is_scored():
    def predict(self, net, x, view):
        return nn.functional.one_hot(torch.zeros(len(x), dtype=torch.int64), 3).double()

    always_first = dataclass(frozen=True)(
        type("First", (Method,), {"name": "first", "predict": predict})
    )
    run = start(always_first(), ONE).play()
    assert [line["test"] for line in run.lines if line["client"]] == [pytest.approx(1 / 3)] * 3


# -- clients that never took part ----------------------------------------------------------------


def test_unseen_clients_get_the_global_model_where_all_is_shared():
    run = start("fedprox", PROTOCOL, hold_out=["b"]).play()
    line = next(line for line in run.lines[::-1] if line["client"] == "b")
    assert line["role"] == "unseen"
    assert line["test"] == pytest.approx(by_hand(run.progress.server.model, federation()["b"].test))
    last = {line["client"]: line for line in run.lines}
    assert last[None]["mean"] == pytest.approx((last["a"]["test"] + last["c"]["test"]) / 2), (
        "of those seen"
    )


@dataclass(frozen=True)
class KeepsOneNorm(Method):
    """Attaches a second norm, which it shares, and keeps the first."""

    name: ClassVar[str] = "keepsone"

    def build(self, model, facts):
        insert_after(model, "conv", "second", nn.BatchNorm2d(4))
        return model

    def scope(self, name, module):
        return Scope("kept" if name.startswith("conv.1.") else "both")


def test_only_kept_statistics_are_estimated_anew():
    run = start(KeepsOneNorm(), ONE, hold_out=["c"]).play()
    server, kept = run.progress.server.model, list(run.progress.kept.values())
    x = run.unseen[0].train.x
    found = evaluate.for_unseen(run.plan, server, kept, x)
    moved = {n for n in found if not torch.equal(found[n], server[n])}
    assert moved <= {n for n in server if n.startswith("conv.1.")}
    assert {"conv.1.running_mean", "conv.1.weight"} <= moved


def test_before_anybody_kept_anything_it_is_the_global_model():
    run = start("fedbn")
    found = evaluate.for_unseen(
        run.plan, run.progress.server.model, [{}, {}], federation()["c"].train.x
    )
    assert all(torch.equal(found[n], t) for n, t in run.progress.server.model.items())


def test_there_is_no_score_where_clients_keep_more_than_norms():
    keeps_head = dataclass(frozen=True)(
        type(
            "KeepsHead",
            (Method,),
            {
                "name": "head",
                "scope": lambda s, name, m: Scope("kept" if name.startswith("head.") else "both"),
            },
        )
    )
    run = start(keeps_head(), ONE, hold_out=["c"]).play()
    line = next(line for line in run.lines if line["client"] == "c")
    assert line["test"] is line["val"] is None
