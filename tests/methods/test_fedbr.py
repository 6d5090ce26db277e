"""FedBR: its loss in numbers, its game, where pseudo-data come from and go, and every switch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys, tree
from fedshift.engines import choice
from fedshift.errors import BadData, BadValue, CannotCombine
from fedshift.method import Method, Phase, Stage
from fedshift.methods.fedbr import HEAD, UP, FedBR, projector
from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference

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
        run._round(0.0)
    job = run._jobs(run.stages[run.progress.stage], run.progress)[0]
    trip = run._engine._trips[job.place]
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
    for kind, count in (("paper", paper), ("released", released)):
        assert sum(p.numel() for p in projector(width, kind).parameters()) == count


# -- the game ----------------------------------------------------------------------------------


def losses_at(trip, work, phase: Phase, x, y) -> float:
    dyn = {**work.dyn, **trip._moment(work)}
    trip._modes(phase.training, force=True)
    buffers = {n: t.clone() for n, t in work.buffers.items()}
    total = sum(float(t) for t in trip._terms(phase, dyn, None, x, y).values())
    for name, old in buffers.items():
        work.buffers[name].copy_(old)
    return total


def test_a_step_up_widens_the_gap_and_a_step_down_lowers_the_loss():
    run = start(quick(lam=0.3), ONE.replace(lr=1e-3))
    trip, work = trip_of(run)
    for _ in range(3):  # at the start, f and f_g are the same
        trip.step(work, 0, masked=False)
    x, y = trip._fetch(work)
    up, down = run.plan.phases
    dyn, dims = {**work.dyn, **trip._moment(work)}, work.dims["dyn"]
    for phase, sign in ((up, 1), (down, -1)):
        before = losses_at(trip, work, phase, x, y)
        old = {n: t.detach().clone() for n, t in work.params.items()}
        trip._apply(work, [(phase, trip._gradient(work, phase, x, y, dyn, dims, None))], None)
        assert sign * (losses_at(trip, work, phase, x, y) - before) > 1e-9
        moved = {n.startswith(HEAD) for n, t in work.params.items() if not torch.equal(t, old[n])}
        assert moved == {phase.name == UP}, "each phase moves its own tensors alone"


def plain():
    return ToyNet(dropout=0.0, norm=False)


def test_the_gap_by_hand():
    """No dropout, no norm: every piece of the term can be computed from outside."""
    method = FedBR(size=7, mean_of=3, tau1=1.5, tau2=0.5)
    run = fs.Run(
        federation(), method, ONE, plain, dtype="float64", device="cpu", engine="loop", workers=1
    )
    trip, work = trip_of(run)
    received = {n: t.detach().clone() for n, t in work.params.items()}
    trip.step(work, 0, masked=False)
    x, y = trip._fetch(work)
    pool = work.dyn["fixed"]["fedbr/pseudo"][:5]  # a batch has 5: the first 5 of 7 are paired
    net = run.plan.model
    with torch.no_grad():
        e1, e3 = net.fedbr_projector(net.features(pool)), net.fedbr_projector(net.features(x))
        features = {n: t for n, t in received.items() if not n.startswith(HEAD)}
        before = plain().double()
        before.load_state_dict({n: features[n] for n in before.state_dict()})
        e2 = net.fedbr_projector(before.features(pool))
    s1 = 1.5 * F.cosine_similarity(e1, e2)
    s2 = 0.5 * F.cosine_similarity(e1, e3)
    expected = -torch.log(s1.exp() / (s1.exp() + s2.exp())).mean().item()
    assert losses_at(trip, work, run.plan.phases[0], x, y) == pytest.approx(expected, abs=1e-12)


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
        blend, q = method._pseudo(x, y, ctx)
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


# -- compositions ------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["mixup", "fedprox", "fedbn", "scaffold"])
def test_compositions_agree_on_both_engines(other):
    method = quick() + fs.methods.make(other)
    protocol = SHORT.replace(rounds=2)
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
        {"head": "none", "donors": "samples", "pseudo_mode": "apart"},
    ):
        protocol = SHORT.replace(rounds=2, participation=2, weights="samples")
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


def test_the_wrong_task():
    facts = replace(federation().facts(), task="segmentation")
    with pytest.raises(BadData, match="classification"):
        FedBR().build(ToyNet(), facts)
