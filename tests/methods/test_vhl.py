"""VHL: its terms by hand on features that are told, what predictions look at, and every switch.

With real features all e_1, virtual ones all e_1 and one class, each row's positives are all others:
SupCon is log(n - 1) for n rows, whatever the temperature.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedshift import keys
from fedshift.methods.vhl import HEAD, VHL
from fedshift.net import Net
from fedshift.parts.contrast import supervised
from tests.methods.quadratic import ENGINES
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, largest_difference

SMALL = {"virtual_batch": 8, "virtual_size": 4}
ONE = PROTOCOL.replace(rounds=1, steps=1, lr=1e-15)


def small(**values):
    return VHL(**{**SMALL, **values})


def losses(method, protocol=ONE, **options):
    return start(method, protocol, **options).play().lines[0]["loss"]


class Moment:
    """What the loss looks at beside the net."""

    def __init__(self, run, epoch=0):
        self.phase, self.facts = "model", run.plan.facts
        self.key, self.epoch = keys.as_tensor(5), torch.tensor(epoch)


def by_parts(method, y, epoch=0):
    """Terms of a batch, with what they are made of."""
    run = start(method)
    net = Net(run.plan.model.eval())
    x = run.federation.clients[0].train.x[: len(y)]
    out, moment = net.output(x), Moment(run, epoch)
    x_v, y_v = method._virtual(x, moment)
    z_v = net.features(x_v)
    wide = [torch.cat([net.head(z), net.call(HEAD, z)], 1) for z in (out.z, z_v)]
    return method.loss(out, y, moment, net), out.z, z_v, y_v, wide


def test_terms_by_hand():
    y = torch.tensor([0, 2, 1, 1, 0])
    terms, z, z_v, y_v, (real, virtual) = by_parts(small(alpha=0.5, align=2.0), y)
    assert real.shape == (5, 2 * CLASSES) and set(y_v.tolist()) <= {0, 1, 2}
    assert torch.allclose(terms["task"], F.cross_entropy(real, y))
    assert torch.allclose(terms["virtual"], 0.5 * F.cross_entropy(virtual, CLASSES + y_v))
    both = supervised(torch.cat([z, z_v]), torch.cat([y, y_v]), 0.07)
    assert torch.allclose(terms["alignment"], 2.0 * (both + 0.1 * supervised(z_v, y_v, 0.07)))
    fedbr, *_ = by_parts(small(alpha=0.5, align=2.0, matching="fedbr"), y)
    both = supervised(torch.cat([real, virtual]), torch.cat([y, y_v - CLASSES]), 0.07)
    assert torch.allclose(fedbr["alignment"], 2.0 * (both + 0.1 * supervised(virtual, y_v, 0.07)))


def test_contrast_of_one_class_that_is_all_alike():
    pull = VHL(align_virtual=0.1)._pull(
        torch.ones(3, 2), torch.zeros(3).long(), torch.ones(4, 2), torch.zeros(4).long()
    )
    assert pull.item() == pytest.approx(math.log(6) + 0.1 * math.log(3), abs=1e-6)


def test_virtual_features_are_held_still_where_real_ones_are_drawn_to_them():
    z, z_v = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    y = torch.tensor([0, 0, 1, 1])
    pull = VHL(align_virtual=0.0)._pull(z, y, z_v, y)
    one, other = torch.autograd.grad(pull, [z, z_v])
    assert one.any() and not other.any()
    (other,) = torch.autograd.grad(VHL(align_virtual=0.1)._pull(z, y, z_v, y), [z_v])
    assert other.any()


def test_soft_labels_count_for_real_classes_alone():
    y = torch.tensor([0, 2, 1])
    soft = F.one_hot(y, CLASSES).double()
    hard_terms, *_ = by_parts(small(), y)
    soft_terms, *_ = by_parts(small(), soft)
    for name, value in hard_terms.items():
        assert torch.allclose(value, soft_terms[name])


@pytest.mark.parametrize(("epoch", "there"), [(0, True), (4, True), (5, False)])
def test_features_are_drawn_in_the_first_local_epochs(epoch, there):
    terms, *_ = by_parts(small(), torch.tensor([0, 1, 2]), epoch)
    assert (terms["alignment"] > 0) == there


def test_predictions_look_at_real_classes_alone():
    run = start(small()).play()
    x = run.federation.clients[0].test.x
    net = Net(run.plan.model.eval(), run.progress.server.model)
    assert run.plan.method.predict(net, x, "global").shape == (len(x), CLASSES)


@pytest.mark.parametrize("engine", ENGINES)
def test_virtual_images_move_running_statistics_where_asked_for(engine):
    def statistics(**values):
        model = start(small(**values), ONE, engine=engine).play().progress.server.model
        return model["conv.1.running_mean"]

    plain = start("fedavg", ONE, engine=engine).play().progress.server.model
    assert torch.allclose(statistics(), plain["conv.1.running_mean"], atol=1e-12)
    train = statistics(virtual_mode="train")
    assert not torch.allclose(train, plain["conv.1.running_mean"], atol=1e-3)
    one = losses(small(), engine=engine)
    other = losses(small(virtual_mode="train"), engine=engine)
    assert one == pytest.approx(other), "training is the same"


def test_virtual_data_are_a_set_of_its_size_that_follows_from_its_seed():
    run = start(small(virtual_size=1, virtual_batch=64))
    x = run.federation.clients[0].train.x
    made, y = run.method.parts[0]._virtual(x, Moment(run))
    assert len(made.unique(dim=0)) == CLASSES == len(y.unique())
    more, _ = VHL(virtual_size=100, virtual_batch=64)._virtual(x, Moment(run))
    assert len(more.unique(dim=0)) > 40
    other, _ = VHL(virtual_size=1, virtual_batch=64, virtual_seed=1)._virtual(x, Moment(run))
    assert not torch.allclose(other, made)


def test_nothing_but_the_model_crosses():
    run = start(small())
    job = run._jobs(run.stages[0], run.progress)[0]
    assert not job.payload.tensors and not job.payload.numbers
    assert set(run.plan.up) - set(ToyNet().state_dict()) == {f"{HEAD}.weight", f"{HEAD}.bias"}


@pytest.mark.parametrize(
    "settings", [{"alpha": 0.0}, {"align": 0.0}, {"matching": "fedbr"}, {"virtual_mode": "train"}]
)
def test_switches_agree_on_both_engines(settings):
    protocol = PROTOCOL.replace(participation=2)
    runs = [start(small(**settings), protocol, engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert largest_difference(state(start(small(), protocol).play()), state(runs[0])) > 1e-9


@pytest.mark.parametrize("other", ["mixup", "fedbn", "feddecorr"])
def test_with_methods_of_the_clients(other):
    runs = [start(f"vhl+{other}", engine=e).play() for e in ENGINES]
    assert largest_difference(*map(state, runs)) < 1e-9
