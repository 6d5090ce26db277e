"""Federations: what is refused, and those made from others."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedshift.errors import BadData, UnknownName
from fedshift.federation import Federation, Samples
from tests.toys import federation

FED = federation((4, 6, 5))


def with_train(**changes) -> Federation:
    """The federation whose client "b" has other training samples."""
    b = dataclasses.replace(FED["b"], train=dataclasses.replace(FED["b"].train, **changes))
    return dataclasses.replace(FED, clients=(FED["a"], b, FED["c"]), scored=())


def test_names_and_facts():
    assert FED.names == ("a", "b", "c") and FED["b"] is FED.clients[1]
    facts = FED.facts()
    assert (facts.task, facts.classes, facts.shape, facts.clients) == (
        "classification",
        3,
        (1, 6, 6),
        ("a", "b", "c"),
    )
    assert FED.scored == FED.clients
    with pytest.raises(UnknownName, match="unknown client 'd'"):
        FED["d"]


X, Y = FED["b"].train.x, FED["b"].train.y


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[:0], "y": Y[:0]}, "client 'b' of 'toy' has no training data: give it some"),
        ({"x": X[:5]}, r"client 'b' of 'toy' \(train\) has 5 samples but 6 labels"),
        ({"x": X[..., :5]}, r"\(1, 6, 5\), but those that 'a' trains on have \(1, 6, 6\): resize"),
        (
            {"x": X.index_fill(0, torch.tensor(5), torch.nan)},
            r"\(train\) holds NaN or infinite values",
        ),
        ({"x": X * torch.inf}, "holds NaN or infinite values"),
        ({"y": Y.double()}, "labels of type torch.float64: labels must be whole numbers"),
        ({"y": Y == 0}, "labels of type torch.bool"),
        ({"y": Y + 1}, "has a label 3, outside 0 to 2: the federation has 3 classes"),
        ({"y": Y - 1}, "has a label -1, outside 0 to 2"),
        ({"x": (X * 255).byte()}, "samples of type torch.uint8, but .* torch.float64: give uint8"),
        ({"y": Y[:, None].repeat(1, 3)}, r"shape \[6, 3\], not \[6\]: classification takes one"),
    ],
)
def test_data_that_cannot_be_learnt_from(changes, message):
    with pytest.raises(BadData, match=message):
        with_train(**changes)


def test_splits_are_checked_too():
    b = dataclasses.replace(FED["b"], test=Samples(FED["b"].test.x, FED["b"].test.y + 1))
    with pytest.raises(BadData, match=r"client 'b' of 'toy' \(test\) has a label 3"):
        dataclasses.replace(FED, clients=(FED["a"], b))


@pytest.mark.parametrize("name", ["", " a", "a/b", "a\\b", "..", ".a", "a\n", "ä" * 101])
def test_client_names_must_be_file_names(name):
    with pytest.raises(BadData, match="cannot be a file name: rename the client"):
        dataclasses.replace(FED, clients=(dataclasses.replace(FED["a"], name=name),))


def test_two_clients_of_one_name_and_none():
    with pytest.raises(BadData, match="two clients named 'a': rename one"):
        dataclasses.replace(FED, clients=(FED["a"], FED["a"]))
    with pytest.raises(BadData, match="two classes named 'x': rename one"):
        dataclasses.replace(FED, classes=("x", "y", "x"))
    with pytest.raises(BadData, match="'toy' has no clients"):
        dataclasses.replace(FED, clients=(), scored=())


def test_a_task_has_its_metrics():
    assert FED.metric == FED.facts().metric == "accuracy"
    with pytest.raises(UnknownName, match="unknown metric of classification 'dice'"):
        dataclasses.replace(FED, metric="dice")
    with pytest.raises(UnknownName, match="unknown task 'segmenting': did you mean segmentation"):
        dataclasses.replace(FED, task="segmenting", metric="")


def test_pooled():
    fed = dataclasses.replace(FED, source="somewhere")
    pooled = fed.pooled()
    assert pooled.names == ("pooled",) and pooled.scored == FED.clients and pooled.source == ""
    for split in ("train", "val", "test"):
        whole = getattr(pooled["pooled"], split)
        assert torch.equal(whole.x, torch.cat([getattr(c, split).x for c in FED.clients]))
        assert torch.equal(whole.y, torch.cat([getattr(c, split).y for c in FED.clients]))
    assert len(FED["a"].train) == 4, "the clients are as they were"


def test_without():
    fed = dataclasses.replace(FED, source="somewhere")
    rest = fed.without(["b"])
    assert rest.names == ("a", "c") and rest.scored == (FED["a"], FED["c"]) and rest.source == ""
    assert fed.names == ("a", "b", "c") and fed.without([]).names == fed.names
    with pytest.raises(UnknownName, match="unknown client 'x'"):
        FED.without(["x"])
    with pytest.raises(BadData, match="holding out a, b, c leaves no client"):
        FED.without("cab")


def test_map():
    shorter = FED.map(lambda c: dataclasses.replace(c, train=c.train.take(torch.tensor([2, 0]))))
    assert [len(c.train) for c in shorter.clients] == [2, 2, 2]
    assert torch.equal(shorter["c"].train.x, FED["c"].train.x[[2, 0]])
    assert shorter.scored == shorter.clients
