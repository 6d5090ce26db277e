"""FedBR: its loss in numbers, its game, where pseudo-data come from and go, and every switch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys, tree
from fedshift.engines import choice
from fedshift.errors import BadData, BadModel, BadValue, CannotCombine
from fedshift.federation import Client, Federation, Samples
from fedshift.method import Method, Phase, Stage
from fedshift.methods.fedbr import HEAD, UP, FedBR
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference, samples

ONE = PROTOCOL.replace(rounds=1)
SHORT = ONE.replace(steps=2)


def quick(**options) -> FedBR:
    return FedBR(**{"size": 6, "mean_of": 3, **options})


def model(run) -> tree.Tree:
    return run.progress.server.model


def trip_of(run):
    """What a first local step of client "a" needs, by hand: the trip, its work and a batch."""
    run._engine = choice.start(run.plan, run.federation, "loop", 0)
    while run.stages[run.progress.stage].name != "train":
        run.play_round()
    job = run._jobs(run.stages[run.progress.stage], run.progress)[0]
    trip = run._engine.trip(job.place)
    return trip, trip.begin([replace(job, place=0)], job.steps)


# -- the loss in numbers -----------------------------------------------------------------------


def test_undecided_predictions_in_numbers():
    # -mean(log softmax [1, 2, 3]) = log(e + e^2 + e^3) - 2
    uniform = torch.full((1, 3), 1 / 3)
    loss = F.cross_entropy(torch.tensor([[1.0, 2.0, 3.0]]), uniform)
    assert loss.item() == pytest.approx(1.407606, abs=1e-6)
    assert F.cross_entropy(torch.zeros(1, 3), uniform).item() == pytest.approx(1.098612, abs=1e-6)


@pytest.mark.parametrize(("lam", "total"), [(1.0, 2.425), (0.1, 1.345)])
def test_the_terms_add_up(lam, total, monkeypatch):
    """0.9 + 0.5 * 0.65 + lam * 1.2, with the two losses put in place of the real ones."""
    from fedshift.methods import fedbr

    class Still:
        x = z = torch.zeros(2, 3)
        buffers = frozenset()
        features = head = staticmethod(lambda x: x)

        def aside(self):
            return self

    monkeypatch.setattr(FedBR, "_gap", lambda *given: torch.tensor(0.65))
    monkeypatch.setattr(fedbr.F, "cross_entropy", lambda z, q: torch.tensor(1.2))
    run = start(quick(lam=lam), ONE)
    trip, work = trip_of(run)
    dyn = {**work.dyn, **trip._moment(work)}
    ctx = run.method._mine(run.method.parts[0], trip._ctx(dyn, "model"))
    terms = FedBR(lam=lam).loss(Still(), torch.zeros(2).long(), ctx, Still())
    assert set(terms) == {"contrast", "undecided"}
    assert 0.9 + float(sum(terms.values())) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    ("width", "paper", "released"),
    [(128, 131_712, 131_712), (512, 230_016, 2_099_712), (256, 164_480, 525_568)],
)
def test_sizes_of_heads(width, paper, released):
    # (w+1) h + (h+1) h + (h+1) o with h, o = 256, 128, or 2 w, w
    facts = replace(federation().facts(), width=width)
    for kind, count in (("paper", paper), ("released", released), ("none", 0)):
        built = FedBR(head=kind).build(nn.Module(), facts)
        assert sum(p.numel() for p in built.parameters()) == count


# -- the game ----------------------------------------------------------------------------------


def losses_at(trip, work, phase: Phase, x, y) -> float:
    dyn = {**work.dyn, **trip._moment(work)}
    trip._modes(phase.training, force=True)
    buffers = {n: t.clone() for n, t in work.buffers.items()}
    total = sum(float(t) for t in trip._terms(phase, dyn, None, x, y).values())
    for name, old in buffers.items():
        work.buffers[name].copy_(old)
    return total


@pytest.mark.parametrize("terms", [("*",), ("contrast",)])
def test_a_step_up_widens_the_gap_and_a_step_down_lowers_the_loss(terms):
    """The whole loss, or L_con where it stands alone."""
    run = start(quick(lam=0.3), ONE.replace(lr=1e-3))
    trip, work = trip_of(run)
    for _ in range(3):  # at the start, f and f_g are the same
        trip.step(work, 0, masked=False)
    x, y = trip._fetch(work)
    up, down = run.plan.phases
    dyn, dims = {**work.dyn, **trip._moment(work)}, work.dims["dyn"]
    for phase, sign in ((up, 1), (replace(down, terms=terms), -1)):
        before = losses_at(trip, work, phase, x, y)
        old = {n: t.detach().clone() for n, t in work.params.items()}
        trip._apply(work, [(phase, trip._gradient(work, phase, x, y, dyn, dims, None))], None)
        assert sign * (losses_at(trip, work, phase, x, y) - before) > 1e-9
        moved = {n.startswith(HEAD) for n, t in work.params.items() if not torch.equal(t, old[n])}
        assert moved == {phase.name == UP}, "each phase moves its own tensors alone"


@pytest.mark.parametrize(
    ("options", "norm"),
    [
        ({"size": 7, "tau1": 1.5, "tau2": 0.5}, False),  # of 7 and a batch of 5, 5 are paired
        ({"size": 3}, True),  # of 3 and 5, 3; f_g normalises by the batch
        ({"size": 5, "head": "released", "temperature": "divide", "tau1": 0.7}, False),
        ({"size": 5, "head": "none", "tau2": 0.0}, True),
        ({"size": 7, "head": "none", "temperature": "divide"}, False),
    ],
)
def test_the_gap_by_hand(options, norm):
    """No dropout: every piece of the term can be computed from outside."""
    method = FedBR(mean_of=3, **options)
    run = fs.Run(
        federation(),
        method,
        ONE,
        lambda: ToyNet(dropout=0.0, norm=norm),
        dtype="float64",
        device="cpu",
        engine="loop",
        workers=1,
    )
    trip, work = trip_of(run)
    received = copy.deepcopy(run.plan.model).train()
    trip.step(work, 0, masked=False)
    x, y = trip._fetch(work)
    pool = work.dyn["fixed"]["fedbr/pseudo"]
    rows = min(5, method.size)
    trained = copy.deepcopy(run.plan.model).train()
    head = getattr(trained, HEAD, nn.Identity())
    with torch.no_grad():
        e1, e2, e3 = (
            head(z[:rows])
            for z in (trained.features(pool), received.features(pool), trained.features(x))
        )
    by = (lambda s, tau: s * tau) if method.temperature == "multiply" else (lambda s, tau: s / tau)
    f1 = by(F.cosine_similarity(e1, e2), method.tau1).exp()
    f2 = by(F.cosine_similarity(e1, e3), method.tau2).exp()
    expected = -torch.log(f1 / (f1 + f2)).mean().item()
    down = run.plan.phases[-1]
    found = losses_at(trip, work, replace(down, terms=("contrast",)), x, y)
    assert found == pytest.approx(method.mu * expected, abs=1e-12)
    if method.head != "none":
        up = run.plan.phases[0]
        assert losses_at(trip, work, up, x, y) == pytest.approx(expected, abs=1e-12)


def test_the_received_extractor_drops_nothing_out():
    run = start(quick(), ONE)  # ToyNet drops out and normalises
    trip, work = trip_of(run)
    model = copy.deepcopy(run.plan.model).eval()
    model.conv.train()
    with torch.no_grad():
        plain = model.features(work.dyn["fixed"]["fedbr/pseudo"])
    assert torch.equal(work.dyn["fixed"]["fedbr/received"], plain)
    before = {n: t.clone() for n, t in work.buffers.items()}
    trip._modes(("model",), force=True)
    with torch.no_grad():
        fs.net.Net(run.plan.model).at(work.dyn["initial"], by_batch=True).features(
            plain.new_ones(4, 1, 6, 6)
        )
    assert all(torch.equal(t, before[n]) for n, t in work.buffers.items()), "a look leaves no trace"


# -- pseudo-data: what they are, and what they cost ---------------------------------------------


def test_pseudo_data_are_made_of_everybodys_samples_and_cost_their_bytes_once():
    run = start(quick(size=5), PROTOCOL.replace(participation=2)).play()
    assert [s.name for s in run.stages] == ["fedbr-collect", "fedbr-send", "train"]
    pools = [kept["fedbr/pseudo"] for kept in run.progress.kept.values()]
    assert len(pools) == 3 and all(torch.equal(p, pools[0]) for p in pools)
    assert pools[0].shape == (5, 1, 6, 6)
    assert not run.progress.server.methods["fedbr"].tensors, "nothing is left to send"
    rounds = [line for line in run.lines if line["client"] is None]
    network = tree.nbytes(model(run))
    sample = 36 * 8
    # 3 clients send 2 means each, all get 5, then nothing but the network travels
    assert [r["bytes_up"] for r in rounds] == [3 * 2 * sample, 0, 2 * network, 2 * network]
    down = [3 * network, 3 * (network + 5 * sample), 2 * network, 2 * network]
    assert [r["bytes_down"] for r in rounds] == down
    assert (
        run.method.content("fedbr/pseudo") == run.method.content("fedbr/means") == "averaged data"
    )


def test_the_head_is_not_asked_for_predictions():
    used = start(quick()).plan.used
    assert used and not any(n.startswith(HEAD) for n in used)


def test_pseudo_data_of_every_round():
    method = quick(every="round")
    seen = []

    def look(run, line):
        seen.append(run.progress.server.methods["fedbr"].tensors["pseudo"].clone())

    run = start(method, PROTOCOL.replace(participation=2)).play(look)
    assert [s.name for s in run.stages] == ["fedbr-collect", "train"]
    assert len(seen) == 3 and not any(map(torch.equal, seen[1:], seen))
    assert not any("fedbr/pseudo" in kept for kept in run.progress.kept.values())
    rounds = [line for line in run.lines if line["client"] is None]
    network, sample = tree.nbytes(model(run)), 36 * 8
    # of two participants, each sends 3 of the next round's 6
    assert [r["bytes_up"] for r in rounds] == [
        3 * 2 * sample,
        *[2 * (network + 3 * sample)] * 2,
    ]
    assert rounds[1]["bytes_down"] == 2 * (network + 6 * sample)


def test_a_mean_of_one_is_a_training_sample():
    run = start(quick(mean_of=1, size=9), ONE).play()
    pool = run.progress.kept["a"]["fedbr/pseudo"]
    for k, client in enumerate(run.federation.clients):
        own = sum(any(torch.equal(p, x) for x in client.train.x.double()) for p in pool)
        assert own == 3, f"client {k} gives a third"


@pytest.mark.parametrize("donors", ["uniform", "samples"])
def test_donors(donors):
    fed = federation((40, 4, 4))
    run = start(quick(mean_of=1, size=60, donors=donors), ONE.replace(steps=1), fed).play()
    pool = run.progress.kept["a"]["fedbr/pseudo"]
    of_a = sum(any(torch.equal(p, x) for x in fed["a"].train.x.double()) for p in pool)
    # 20 of 60 (sd 3.7) where clients count alike, 50 (sd 2.9) where samples do
    assert abs(of_a - (20 if donors == "uniform" else 50)) <= 11
    assert run.lines[3]["bytes_up"] == 3 * 60 * 36 * 8, "each sends a full set"


def proxies(path, values=None, shape=(1, 6, 6)):
    x = np.arange(40, dtype=np.uint8) if values is None else values
    np.savez(path, x=np.broadcast_to(x.reshape(-1, *[1] * len(shape)), (len(x), *shape)))
    return str(path)


def test_public_data_are_normalised_like_the_clients(tmp_path):
    from fedshift.data.augment import Pipeline

    path = proxies(tmp_path / "p.npz", np.full(8, 51, dtype=np.uint8))
    fed = federation(pipeline=Pipeline((0.5,), (0.25,)))
    run = start(quick(source="mixture", proxy=path, mix=0), ONE, fed)
    _, work = trip_of(run)
    # (51 / 255 - 0.5) / 0.25
    assert torch.allclose(work.dyn["fixed"]["fedbr/pseudo"], torch.tensor(-1.2).double())
    rounds = [line for line in run.lines if line["client"] is None]
    assert [r["bytes_up"] for r in rounds] == [0, 0], "nothing of the clients goes up"


def test_blends_change_with_every_step(tmp_path):
    method = quick(source="mixture", proxy=proxies(tmp_path / "p.npz"), mix=2)
    run = start(method, ONE)
    trip, work = trip_of(run)
    x, y = trip._fetch(work)
    seen = []
    for step in range(2):
        work.t.fill_(step)
        ctx = run.method._mine(method, trip._ctx({**work.dyn, **trip._moment(work)}, "model"))
        blend, q = method._pseudo(SimpleNamespace(x=x), y, ctx)
        partner = keys.integers(keys.fold_in(ctx.key, "mix"), 5, (6, 2))
        base = work.dyn["fixed"]["fedbr/pseudo"]
        assert torch.allclose(blend, (base + x[partner[:, 0]] + x[partner[:, 1]]) / 3)
        hot = F.one_hot(y, CLASSES).double()
        assert torch.allclose(q, (1 / CLASSES + hot[partner[:, 0]] + hot[partner[:, 1]]) / 3)
        assert torch.allclose(q.sum(1), torch.ones(6).double())
        seen.append(blend)
    assert not torch.equal(*seen)


def test_public_data_that_do_not_fit(tmp_path):
    with pytest.raises(BadValue, match="proxy"):
        FedBR(source="mixture")
    with pytest.raises(BadValue, match="proxy"):
        FedBR(proxy="x.npz")
    for path, message in (
        (str(tmp_path / "none.npz"), "no file"),
        (
            proxies(tmp_path / "wide.npz", shape=(1, 8, 8)),
            r"wide\.npz holds samples of shape \(1, 8",
        ),
    ):
        with pytest.raises(BadData, match=message):
            start(quick(source="mixture", proxy=path))
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    with pytest.raises(BadData, match="no array 'x'"):
        start(quick(source="mixture", proxy=str(tmp_path / "y.npz")))


# -- switches ----------------------------------------------------------------------------------


def test_every_switch_changes_the_model(tmp_path):
    path = proxies(tmp_path / "p.npz")
    variants = [
        {},
        {"mu": 0.0},  # component 1
        {"lam": 0.0},  # component 2
        {"lam": 0.0, "max_step": False},  # component 2 without its max step
        {"max_step": False},  # component 1 and the min step
        {"head": "none"},
        {"head": "released"},
        {"tau1": 1.0},
        {"tau2": 0.0},
        {"temperature": "divide"},
        {"every": "round"},
        {"donors": "uniform"},
        {"mean_of": 2},
        {"size": 4},
        {"pseudo_mode": "apart"},
        {"source": "mixture", "proxy": path, "mix": 0},
        {"source": "mixture", "proxy": path, "mix": 1},
        {"source": "mixture", "proxy": path, "mix": 1, "every": "round"},
    ]
    heads = []
    for change in variants:
        found = model(start(quick(**change), SHORT.replace(rounds=2)).play())
        assert all(torch.isfinite(t).all() for t in found.values())
        heads.append(torch.cat([found["head.weight"].flatten(), found["conv.1.running_mean"]]))
    for i, a in enumerate(heads):
        for j in range(i):
            assert not torch.allclose(a, heads[j], atol=1e-9), (variants[i], variants[j])


@pytest.mark.parametrize(
    ("change", "ratios"),
    [
        ({"mu": 0.0}, {"undecided": 1}),  # component 1
        ({"lam": 0.0}, {"contrast": 1, "gap": 1}),  # component 2
        ({"lam": 0.0, "max_step": False}, {"contrast": 1}),  # component 2 without its max step
        ({"max_step": False}, {"contrast": 1, "undecided": 1}),  # component 1 and the min step
        ({"mu": 2.0}, {"contrast": 4, "undecided": 1, "gap": 1}),
        ({"lam": 0.1}, {"contrast": 1, "undecided": 0.1, "gap": 1}),
        ({"pseudo_mode": "apart"}, {"contrast": 1, "undecided": 1, "gap": 1}),
    ],
)
def test_a_switch_changes_what_it_says_and_nothing_else(change, ratios):
    """Terms of one first step, where model and pseudo-data are still the same."""
    still = ONE.replace(steps=1, lr=1e-15)
    one, two = (start(quick(**c), still).play().lines[-1]["loss"] for c in ({}, change))
    assert set(two) == {"task", *ratios}
    for term, ratio in {"task": 1, **ratios}.items():
        assert two[term] == pytest.approx(ratio * one[term], rel=1e-9), term


def test_without_both_components_it_is_fedavg_whatever_else_is_set(tmp_path):
    plain = model(start(fs.methods.FedAvg(), SHORT).play())
    path = proxies(tmp_path / "p.npz")
    for rest in ({"every": "round"}, {"source": "mixture", "proxy": path}, {"size": 1}):
        found = model(start(FedBR(mu=0.0, lam=0.0, **rest), SHORT).play())
        assert largest_difference(found, plain) == 0.0


def test_components_leave_out_what_they_do_not_need():
    one, two = start(quick(mu=0.0)), start(quick(lam=0.0))
    assert one.plan.phases == (Phase(),) and not any(HEAD in n for n in model(one))
    assert [p.name for p in two.plan.phases] == [UP, "model"]
    one.play(), two.play()
    assert set(one.lines[-1]["loss"]) == {"task", "undecided"}
    assert set(two.lines[-1]["loss"]) == {"task", "contrast", "gap"}
    assert start(quick(mu=0.0, lam=0.0)).stages == (Stage("train", 2),)


def test_a_head_without_its_step_stays_as_it_was():
    still, trained = start(quick(max_step=False), SHORT), start(quick(), SHORT)
    before = {n: t.clone() for n, t in model(still).items() if n.startswith(HEAD)}
    assert len(before) == 6
    assert all(n not in still.plan.shared for n in before)
    assert all(n in trained.plan.shared for n in before), "others correct and average it too"
    still.play(), trained.play()
    assert all(torch.allclose(model(still)[n], t, atol=1e-14) for n, t in before.items())
    assert not any(torch.allclose(model(trained)[n], t) for n, t in before.items())


def test_pseudo_data_may_leave_running_statistics_alone():
    """Without terms that move weights, statistics are FedAvg's; let in, they are not."""
    still = ONE.replace(lr=1e-15)
    plain = model(start(fs.methods.FedAvg(), still).play())
    for mode, equal in (("apart", True), ("train", False)):
        found = model(start(quick(pseudo_mode=mode), still).play())
        same = torch.allclose(found["conv.1.running_var"], plain["conv.1.running_var"], atol=1e-12)
        assert same == equal
        seen = found["conv.1.num_batches_tracked"] / plain["conv.1.num_batches_tracked"]
        assert seen == (1 if equal else 2)


def test_nothing_is_divided_by_zero():
    with pytest.raises(BadValue, match=r"fedbr\.tau2 is 0"):
        FedBR(tau2=0.0, temperature="divide")


# -- clients as they come ----------------------------------------------------------------------


def test_one_pseudo_datum_is_nothing_to_normalise():
    with pytest.raises(BadModel, match=r"fedbr\.size is 1"):
        start(quick(size=1))
    run = fs.Run(
        federation((17, 1, 12)),
        quick(size=1),
        SHORT.replace(batch=1),
        lambda: ToyNet(norm=False),
        device="cpu",
        engine="loop",
        workers=1,
        warn=lambda message: None,
    ).play()
    assert all(torch.isfinite(t).all() for t in model(run).values())


def one_class_each() -> Federation:
    """Clients of one class each, of uneven size; nobody has the third class."""
    clients = []
    for name, label, n in (("a", 0, 14), ("b", 1, 6), ("c", 0, 9)):
        x, y = samples(60, keys.fold(2, name)).x, torch.arange(60) % CLASSES
        mine = Samples(x[y == label][:n], y[y == label][:n])
        clients.append(Client(name, mine, mine, samples(9, keys.fold(3, name))))
    return Federation("apart", tuple(clients), tuple("xyz"))


@pytest.mark.parametrize("every", ["once", "round"])
@pytest.mark.parametrize("participation", [1.0, 2])
def test_clients_of_one_class_and_uneven_size(every, participation):
    protocol = PROTOCOL.replace(participation=participation, weights="samples")
    runs = [
        start(quick(every=every), protocol, one_class_each(), engine=e).play()
        for e in ("loop", "stacked")
    ]
    assert largest_difference(*map(state, runs)) < 1e-9
    assert all(torch.isfinite(t).all() for t in state(runs[0]).values())


@pytest.mark.parametrize("other", ["", "fedcm"])
def test_resumed_with_pseudo_data_on_their_way(other, tmp_path):
    """Cut where the server holds the next round's pseudo-data: equal bits in the end."""

    def method():
        return quick(every="round") + fs.methods.make(other) if other else quick(every="round")

    class Stop(Exception):
        pass

    def stop(run, line):
        if line["stage"] == "train":
            raise Stop

    protocol = PROTOCOL.replace(participation=2, momentum=0.5, reset_optimizer=False)
    whole = start(method(), protocol, out=tmp_path / "whole").play()
    with pytest.raises(Stop):
        start(method(), protocol, out=tmp_path / "cut").play(stop)
    again = fs.Run.resume(
        tmp_path / "cut", federation(), ToyNet, method=method(), warn=lambda message: None
    )
    assert again.progress.done == 1
    assert tree.digest(state(again.play())) == tree.digest(state(whole))


# -- compositions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", ["mixup", "fedprox", "fedcm", "feddecorr", "fedntd", "fedbn", "scaffold"]
)
def test_compositions_agree_on_both_engines(other):
    method = quick() + fs.methods.make(other)
    protocol = PROTOCOL.replace(participation=2)
    loop = start(method, protocol).play()
    stacked = start(method, protocol, engine="stacked").play()
    assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    alone = start(quick(), protocol).play()
    assert largest_difference(model(loop), model(alone)) > 1e-6
    turned = start(fs.methods.make(other) + quick())
    assert [p.name for p in turned.plan.phases] == [UP, "model"], "up before down in any order"


def test_switches_agree_on_both_engines(tmp_path):
    path = proxies(tmp_path / "p.npz")
    for change in (
        {"source": "mixture", "proxy": path, "every": "round"},
        {"source": "mixture", "proxy": path, "mix": 0, "max_step": False},
        {"head": "none", "donors": "samples", "pseudo_mode": "apart"},
        {"head": "released", "donors": "uniform", "every": "round"},
    ):
        protocol = PROTOCOL.replace(participation=2, weights="samples")
        runs = [start(quick(**change), protocol, engine=e).play() for e in ("loop", "stacked")]
        assert largest_difference(*map(state, runs)) < 1e-9


def test_local_training_before_there_are_pseudo_data_is_refused():
    @dataclass(frozen=True)
    class Early(Method):
        name: ClassVar[str] = "early"

        def stages(self, protocol):
            return (Stage("warm", 1), Stage("train", protocol.rounds))

    with pytest.raises(CannotCombine, match="in the stage 'warm'"):
        start(Early() + quick(), ONE).play()
    start(quick() + Early(), ONE).play()
