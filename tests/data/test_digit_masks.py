"""The embedded segmentation: balanced, repeatable, masks where the ink is, sites that differ."""

import torch

from fedshift import data
from fedshift.protocol import Protocol

FED = data.load("shifted-digit-masks")


def test_sites_and_sizes():
    assert FED.names == ("scanner", "camera", "blackboard", "archive", "fax")
    assert (FED.task, FED.metric, FED.classes) == ("segmentation", "dice", ("paper", "ink"))
    for client in FED.clients:
        assert [len(s) for s in (client.train, client.val, client.test)] == [30, 30, 60]
        assert client.train.x.shape[1:] == (1, 32, 32) and client.train.x.dtype == torch.uint8
        assert client.train.y.shape[1:] == (32, 32) and client.train.y.dtype == torch.uint8
        ink = client.train.y.double().mean((1, 2))
        assert float(ink.min()) > 0.02 and float(ink.max()) < 0.2, "every sheet has a digit"


def test_masks_lie_on_the_ink():
    """Ink is darker than paper at all sites but the blackboard, in every picture."""
    for client in FED.clients:
        x, y = client.train.x[:, 0].double(), client.train.y.double()
        inside = (x * y).sum((1, 2)) / y.sum((1, 2))
        outside = (x * (1 - y)).sum((1, 2)) / (1 - y).sum((1, 2))
        brighter = inside > outside
        assert bool(brighter.all()) if client.name == "blackboard" else not bool(brighter.any())


def test_the_camera_turns_masks_too():
    """A mask that did not turn would miss much of the ink: its contrast shows that it does not."""
    x, y = FED["camera"].train.x[:, 0].double() / 255, FED["camera"].train.y
    assert float(x[y == 1].mean()) < 0.35 and float(x[y == 0].mean()) > 0.65


def test_the_seed_decides_and_places_differ():
    again, other = data.shifted_digit_masks(), data.load("shifted-digit-masks?seed=1")
    assert other.source == "shifted-digit-masks?seed=1"
    for name in FED.names:
        assert torch.equal(FED[name].train.x, again[name].train.x)
        assert not torch.equal(FED[name].train.y, other[name].train.y)
    at = FED["scanner"].train.y.any(1).long().argmax(1)  # the first column with ink
    assert int(at.max() - at.min()) >= 10


def test_recommended_fits_the_protocol():
    fields = dict(FED.recommended)
    assert fields.pop("model") == "unet-small"
    assert Protocol(**fields).rounds == 10
