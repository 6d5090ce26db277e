"""FedGenP: the client's loss, what the server trains for whom, and every switch."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedshift as fs
from fedshift import keys
from fedshift.engines import choice
from fedshift.evaluate import logits
from fedshift.federation import Client, Facts
from fedshift.method import Ctx, Uploads
from fedshift.models import Staged
from fedshift.net import Net
from fedshift.parts.generated import consistency
from fedshift.parts.labels import draw_labels
from fedshift.parts.latent_generator import BUFFERS, split
from fedshift.parts.rows import rows_of
from fedshift.run import Run
from fedshift.tree import digest, under
from tests.methods.test_battery import start, state
from tests.toys import CLASSES, ToyNet, federation, largest_difference, samples

FedGenP = fs.methods.FedGenP
QUICK = {"alpha": 1.0, "beta": 1.0, "hidden": 16, "gen_steps": 3, "gen_batch": 8}
PROTOCOL = fs.Protocol(rounds=2, steps=2, batch=5, lr=0.1)
D = torch.float64


def small(**values):
    return FedGenP(**{**QUICK, **values})


def server_of(run):
    return run.progress.server.methods["fedgenp"]


# -- the client --------------------------------------------------------------------------------


def test_weights_fall_with_the_round_to_a_floor():
    like = torch.zeros((), dtype=D)
    expected = {0: 0.0, 1: 9.8, 10: 8.170728, 50: 3.641697, 299: 0.023801, 2000: 1e-4}
    for round, value in expected.items():
        weight = FedGenP()._weight(10.0, torch.tensor(round), like)
        assert weight.item() == pytest.approx(value, abs=5e-7)
        plain = FedGenP(paper_loss=True)._weight(10.0, torch.tensor(round), like)
        assert plain == (round > 0)
    protocol = fs.Protocol(rounds=300, lr=0.01, schedule="exponential")
    assert protocol.rate(10) == pytest.approx(0.009044, abs=5e-7)
    assert protocol.rate(50) == pytest.approx(0.006050, abs=5e-7)


def test_consistency_by_hand():
    """The target softmax(1, 1, 0) is (e, e, 1) / (2e + 1), the student's logits are (2, 0, 0)."""
    student = torch.tensor([[2.0, 0, 0]], dtype=D)
    target = torch.tensor([[1.0, 1, 0]], dtype=D)
    assert consistency(student, target).item() == pytest.approx(0.377550, abs=5e-7)
    other = F.kl_div(student.log_softmax(1), target.softmax(1), reduction="batchmean")
    assert consistency(student, target).item() == pytest.approx(other.item(), abs=1e-12)
    nll = F.cross_entropy(student, torch.tensor([0]))
    assert nll.item() == pytest.approx(0.239545, abs=5e-7)


class Flat(Staged):
    """Two numbers as features, three logits that are linear in them."""

    stages = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight.data = torch.eye(3)[:, :2]


def client_terms(method, rounds=1, gen_batch=4):
    """Loss terms where every generated feature is (1, 1) and both of the batch's are (2, 0)."""
    model = Flat().double()
    facts = Facts("classification", 3, (2,), ("a",), width=2)
    server = method.init_server({"head.weight": model.head.weight.detach()}, facts)
    tensors = dict(method.broadcast(server, "a", 0).tensors)
    tensors["generator/mean.bias"] = torch.ones(2, dtype=D)
    # the spread of e^-50 leaves the mean alone
    tensors["generator/log_variance.bias"] = torch.full((2,), -100.0, dtype=D)
    zero = torch.zeros((), dtype=D)
    ctx = Ctx(
        received={**tensors, "rounds": torch.tensor(rounds)},
        kept={},
        fixed={},
        initial={},
        **dict.fromkeys(("round", "step", "epoch", "steps", "samples", "lr"), zero),
        key=keys.as_tensor(1),
        shared=(),
        stage="train",
        phase="model",
        facts=facts,
        protocol=PROTOCOL,
    )
    net = Net(model)
    out = net.output(torch.tensor([[2.0, 0], [2, 0]], dtype=D))
    return method.loss(out, torch.tensor([0, 1]), ctx, net), model.head.weight


def test_the_terms_of_a_client_by_hand():
    """Both samples' logits are (2, 0, 0), the target's (1, 1, 0)."""
    terms, weight = client_terms(small(alpha=10.0, beta=10.0, gen_batch=4))
    # a_1 = b_1 = 9.8; four generated features beside two samples count twice
    assert terms["consistency"].item() == pytest.approx(9.8 * 0.377550, abs=1e-5)
    (grad,) = torch.autograd.grad(terms["consistency"], weight)
    p = torch.tensor([1.0, 1, 0], dtype=D).softmax(0)
    x = torch.tensor([[2.0, 0], [2, 0]], dtype=D)
    q = (x @ weight.detach().T).softmax(1)
    # the student's gradient (q - p) x, a mean over samples; the target has none
    assert torch.allclose(grad, 9.8 * (q - p).T @ x / 2, atol=1e-12)
    assert terms["generated"].item() > 0
    wanted = draw_labels(
        keys.fold_in(keys.fold_in(keys.as_tensor(1), "generated"), "labels"), 4, torch.ones(3)
    )
    expected = 9.8 * 2 * -p.log()[wanted].mean()
    assert terms["generated"].item() == pytest.approx(expected.item(), abs=1e-12)


def test_switches_of_the_client():
    full, _ = client_terms(small(alpha=10.0, beta=10.0))
    assert not any(t.any() for t in client_terms(small(), rounds=0)[0].values())
    assert set(client_terms(small(beta=0.0))[0]) == {"generated"}
    assert set(client_terms(small(alpha=0.0))[0]) == {"consistency"}
    assert client_terms(small(alpha=0.0, beta=0.0))[0] == {}
    plain, _ = client_terms(small(alpha=10.0, beta=10.0, paper_loss=True))
    assert set(plain) == {"generated"}
    assert 9.8 * plain["generated"].item() == pytest.approx(full["generated"].item(), abs=1e-12)


def test_the_loss_of_a_step_is_rebuilt_from_its_parts():
    """One step of client a, with the generator that it received: its head has no dropout."""
    run = start(small(gen_batch=10), PROTOCOL.replace(steps=1), federation((5, 6))).play()
    first = start(
        small(gen_batch=10), PROTOCOL.replace(steps=1, rounds=1), federation((5, 6))
    ).play()
    method, server = run.method.parts[0], first.progress.server
    payload = method.broadcast(server_of(first), "a", 1)
    assert payload.numbers == {"rounds": 1}
    tensors = under("generator", payload.tensors)
    step = keys.fold_in(keys.as_tensor(keys.fold(0, "client", "a", "train", 1)), 0)
    key = keys.fold_in(keys.fold_in(step, "fedgenp"), "generated")
    wanted = draw_labels(keys.fold_in(key, "labels"), 10, torch.ones(CLASSES, dtype=D))
    drawn = method.generator.draw(key, 10 + 5, tensors)
    made = method.generator(tensors, wanted, {n: t[:10] for n, t in drawn.items()}).z
    value = F.cross_entropy(Net(run.plan.model, server.model).head(made), wanted)
    # a_1 = 1 * 0.98, and 10 generated features beside 5 samples count twice
    assert run.lines[-3]["loss"]["generated"] == pytest.approx(0.98 * 2 * value.item(), abs=1e-9)
    assert run.lines[-3]["loss"]["consistency"] > 0
    assert first.lines[-3]["loss"]["generated"] == first.lines[-3]["loss"]["consistency"] == 0


def test_the_first_round_is_plain_and_the_second_is_not():
    for rounds, same in ((1, True), (2, False)):
        protocol = PROTOCOL.replace(rounds=rounds)
        a, b = start(small(), protocol).play(), start("fedavg", protocol).play()
        apart = largest_difference(a.progress.server.model, b.progress.server.model)
        assert (apart < 1e-12) == same


# -- the server --------------------------------------------------------------------------------


class Linear(Staged):
    """The input as feature of a linear head."""

    stages = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(4, 2)


@functools.cache
def taught(rounds=1, clients=("a", "b", "c"), names=("a", "b", "c"), counted=None, **values):
    """The server after it has seen heads that do not agree: client a has the classes turned."""
    method = FedGenP(**{"hidden": 16, "gen_steps": 20, "gen_lr": 5e-2, **values})
    torch.manual_seed(0)
    model = Linear().double()
    facts = Facts("classification", 2, (4,), names, width=4)
    server = method.init_server({"head.weight": model.head.weight.detach()}, facts)
    direction = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=D)
    heads = {"a": direction, "b": -direction, "c": -direction, "d": 0.5 * direction}
    weight = torch.stack([torch.stack([heads[c], -heads[c]]) for c in clients])
    count = len(clients)
    uploads = Uploads(
        clients=clients,
        samples=torch.ones(count, dtype=D),
        weights=torch.ones(count, dtype=D) / count,
        model={"head.weight": weight, "head.bias": torch.zeros(count, 2, dtype=D)},
        extras={} if counted is None else {"counts": torch.tensor(counted, dtype=D)},
        combined={},
        total=len(names),
        round=0,
        stage="train",
    )
    net = Net(model).at({})
    for r in range(rounds):
        new = {"head.weight": weight.mean(0)}
        _, server = method.after(new, uploads, server, net, keys.fold(7, r))
    return method, server, weight


def features(method, server, client="a"):
    """Features of a client's generator, for classes in turn."""
    tensors = under("generator", method.broadcast(server, client, 1).tensors)
    y = torch.arange(200) % 2
    return method.generator(tensors, y, method.generator.draw(keys.as_tensor(3), 200, tensors)).z, y


def own_and_others(method, server, heads):
    """How often features of client a are classified as wanted: by its own head, by the others'."""
    z, y = features(method, server)
    right = (torch.einsum("kcd,bd->kbc", heads, z).argmax(2) == y).double().mean(1)
    return right[0].item(), right[1:].mean().item()


@pytest.mark.parametrize("schedule", ["joint", "alternate"])
def test_a_generator_makes_what_others_know_and_the_client_does_not(schedule):
    own, others = own_and_others(*taught(rounds=2, schedule=schedule))
    assert others > 0.9 and own < 0.1


def test_released_it_pleases_the_client_instead():
    own, others = own_and_others(*taught(rounds=3, grl="released"))
    assert own > 0.8 and others < 0.2


def test_uncapped_it_runs_away():
    def length(grl):
        method, server, _ = taught(rounds=4, grl=grl)
        return features(method, server)[0].abs().mean()

    assert length("uncapped") > 1.5 * length("capped")


def test_rows_belong_to_names():
    """The absent keep what they had; another order of clients gives the same generators."""
    _, two, _ = taught(clients=("c", "a"))
    _, full, _ = taught()
    _, turned, _ = taught(clients=("c", "a"), names=("c", "b", "a"))
    row = rows_of(two.numbers)
    assert row == rows_of(turned.numbers)
    assert largest_difference(dict(two.tensors), dict(turned.tensors)) == 0
    assert two.tensors["optimizer/step"].tolist() == [20, 0, 20]
    assert full.tensors["optimizer/step"].tolist() == [20, 20, 20]
    for name in (n for n in two.tensors if n.startswith("optimizer/first")):
        moments = two.tensors[name]
        assert not moments[row["b"]].any()
        assert moments[row["a"]].any() == moments[row["c"]].any()
    weights = two.tensors["generator/mean.weight"]
    assert not torch.allclose(weights[row["a"]], weights[row["c"]])
    assert weights[row["b"]].any(), "drawn, though not trained"


def test_a_generator_is_kept_over_rounds_with_its_optimizer():
    _, server, _ = taught(rounds=3, gen_steps=5)
    assert server.tensors["optimizer/step"].tolist() == [15, 15, 15]
    assert server.numbers["rounds"] == 3
    still, moving = taught(rounds=1, gen_steps=5), taught(rounds=2, gen_steps=5, gen_decay=0.0)
    trained = {n: t for n, t in still[1].tensors.items() if n.startswith("generator/")}
    for name, tensor in trained.items():  # the rate is 0 from the second round on
        same = torch.equal(tensor, moving[1].tensors[name])
        assert same == (name.partition("/")[2] not in BUFFERS)


def test_classes_that_nobody_has_are_not_generated():
    """The generator's column of a class that is never wanted has no gradient."""

    def column(label, **values):
        counted = ((5.0, 1.0), (9.0, 1.0), (3.0, 1.0))
        method, server, _ = taught(label_weights="counts", counted=counted, **values)
        payload = method.broadcast(server, "a", 1)
        assert payload.tensors["available"].tolist() == [1, 0]
        return payload.tensors["generator/hidden.weight"][:, 32 + label]

    fresh, trained = {"gen_lr": 0.0}, {"gen_steps": 5, "gen_weight_decay": 0.0}
    assert not torch.equal(column(0, **fresh), column(0, **trained))
    assert torch.equal(column(1, **fresh), column(1, **trained))
    method, server, _ = taught()
    assert "available" not in method.broadcast(server, "a", 1).tensors


def test_a_client_gets_its_own_generator_and_no_other():
    run = start(small(), PROTOCOL.replace(rounds=1)).play()
    server, method = server_of(run), run.method.parts[0]
    payloads = [method.broadcast(server, c, 1).tensors for c in "abc"]
    for k in range(3):
        for name, tensor in payloads[k].items():
            assert torch.equal(tensor, server.tensors[name][k])
    assert not torch.equal(
        payloads[0]["generator/mean.weight"], payloads[1]["generator/mean.weight"]
    )
    assert run.lines[0]["bytes_down"] == sum(t.numel() * 8 for t in payloads[0].values()) + 8 + sum(
        t.numel() * t.element_size() for t in run.progress.server.model.values()
    )


SERVER = [
    {},
    {"grl": "uncapped", "repulsion": 0.5},
    {"grl": "released"},
    {"grl": "released", "label_weights": "counts"},
    {"label_weights": "counts"},
    {"schedule": "alternate"},
    {"vae": "code"},
    {"noise": "uniform"},
    {"kl_weight": 0.3},
    {"gen_weight_decay": 0.0},
]
COUNTED = ((5.0, 1.0), (9.0, 2.0), (3.0, 4.0))


@pytest.mark.parametrize("switch", SERVER, ids=str)
def test_generators_are_trained_as_by_hand(switch):
    """Two steps of plain gradient descent for each client, written out without any part."""
    clients = ("d", "a", "b")  # neither all nor in the order of names
    given = {"clients": clients, "names": ("a", "b", "c", "d"), "gen_steps": 2, **switch}
    given["gen_optimizer"] = "sgd"
    if "label_weights" in switch:
        given["counted"] = COUNTED
    # at rate 0 the generators stay as they were drawn
    _, before, heads = taught(**{**given, "gen_lr": 0.0})
    method, after, _ = taught(**{**given, "gen_lr": 0.1})
    for k, client in enumerate(clients):
        w = under("generator", method.broadcast(before, client, 1).tensors)
        w = {n: t.clone().requires_grad_() for n, t in w.items() if n not in BUFFERS}
        key = keys.as_tensor(keys.fold(keys.fold(7, 0), "train", client))
        for step in range(2):
            value = by_hand(method, w, heads, k, keys.fold_in(key, step), step)
            for p, grad in zip(w.values(), torch.autograd.grad(value, list(w.values()))):
                p.data -= 0.1 * (grad + method.gen_weight_decay * p.data)
        trained = under("generator", method.broadcast(after, client, 1).tensors)
        for name, expected in w.items():
            assert (trained[name] - expected).abs().max() < 1e-12, name


def by_hand(method, w, heads, k, key, step):
    """The loss of client k's generator."""
    uniform = method.noise == "uniform"
    draw = keys.uniform if uniform else keys.normal
    noise = draw(keys.fold_in(key, "noise"), (32, 32), D)
    e = keys.normal(keys.fold_in(key, "latent"), (32, 4), D)
    y = draw_labels(keys.fold_in(key, "labels"), 32, torch.ones(2, dtype=D))
    x = torch.cat([noise, F.one_hot(y, 2).to(D)], dim=1)
    h = x @ w["hidden.weight"].T + w["hidden.bias"]
    h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
    h = (h * w["norm.weight"] + w["norm.bias"]).relu()
    mean = h @ w["mean.weight"].T + w["mean.bias"]
    spread = h @ w["log_variance.weight"].T + w["log_variance.bias"]
    if method.vae == "code":
        spread = 0.1 * mean + 0.0 * spread
    z = mean + e * torch.exp(spread / 2)
    ce = [F.cross_entropy(z @ head.T, y, reduction="none") for head in heads]
    counts = torch.tensor(COUNTED, dtype=D)
    weight = counts / counts.sum(0) if method.label_weights == "counts" else torch.ones_like(counts)
    others = [i for i in range(3) if i != k]
    if method.grl == "released":  # four clients, of whom three took part
        known = sum(weight[i][y].mean() * ce[i].mean() for i in others)
        lacked = 4 * weight[k][y].mean() * ce[k].mean()
    else:
        total = sum(weight[i][y] for i in others)
        known = sum(weight[i][y] / total * ce[i] for i in others).mean()
        lacked = ce[k].mean()
        if method.grl == "capped" and lacked > 2 + torch.tensor(2.0).log():
            lacked = lacked.detach()
        lacked = -method.repulsion * lacked
    value = [known, lacked][step % 2] if method.schedule == "alternate" else known + lacked
    kl = 0.5 * (spread.exp() + mean**2 - 1 - spread).sum(1).mean()
    return value + method.kl_weight * kl


# -- switches, scores, compositions ------------------------------------------------------------

SWITCHES = [
    {"grl": "released"},
    {"schedule": "alternate"},
    {"label_weights": "counts"},
    {"vae": "code"},
    {"noise": "uniform"},
    {"kl_weight": 0.1},
    {"repulsion": 0.5},
    {"paper_loss": True},
    {"decay": 0.5},
    {"gen_weight_decay": 0.0},
    {"gen_optimizer": "sgd"},
]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda s: next(iter(s)))
def test_every_switch_changes_the_run(switch):
    runs = [start(small(**values), engine="stacked").play() for values in ({}, switch)]
    shared = [{n: t for n, t in state(r).items() if n.startswith("head")} for r in runs]
    assert largest_difference(*shared) > 1e-9
    assert ("consistency" in runs[1].lines[-2]["loss"]) == (switch != {"paper_loss": True})


@pytest.mark.parametrize(
    "values",
    [
        {"grl": "released", "label_weights": "counts", "vae": "code", "noise": "uniform"},
        {"grl": "uncapped", "schedule": "alternate", "kl_weight": 0.1, "bn": "client"},
    ],
)
def test_switches_agree_on_both_engines(values):
    protocol = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1, participation=2)
    loop, stacked = (start(small(**values), protocol, engine=e).play() for e in ("loop", "stacked"))
    assert largest_difference(state(loop), state(stacked)) < 1e-9


@pytest.mark.parametrize("other", ["fedbn", "mixup", "fedprox", "pfedavg"])
def test_with_other_methods_on_both_engines(other):
    name = f"fedgenp+{other}"
    loop, stacked = (start(name, engine=e).play() for e in ("loop", "stacked"))
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    assert loop.lines[-2]["loss"] is not None


def test_personal_scores_stand_beside_global_ones():
    run = start(small(), PROTOCOL.replace(rounds=3, participation=2)).play()
    lines = {line["client"]: line for line in run.lines[-4:]}
    for client in run.federation.clients:
        own = under("tuned", run.progress.kept[client.name])
        tensors = {"test": run.progress.server.model, "personal_test": own}
        for name, held in tensors.items():
            guess = logits(run.plan, held, client.test.x).argmax(1)
            assert lines[client.name][name] == pytest.approx(
                (guess == client.test.y).double().mean()
            )
    assert run.lines[-1]["mean"] == pytest.approx(sum(lines[c]["test"] for c in "abc") / 3)


def test_statistics_that_stay_with_the_client():
    """The global score is then of the shared parameters on the client's own statistics."""
    run = start(small(bn="client"), PROTOCOL.replace(rounds=3)).play()
    kept = run.progress.kept["a"]
    held = sorted(n for n in kept if n.startswith("model/"))
    statistics = ("num_batches_tracked", "running_mean", "running_var")
    assert held == [f"model/conv.1.{n}" for n in statistics]
    assert not run.progress.server.model["conv.1.running_mean"].any()
    test = run.federation["a"].test
    tensors = {**run.progress.server.model, **under("model", kept)}
    guess = logits(run.plan, tensors, test.x).argmax(1)
    assert run.lines[-4]["test"] == pytest.approx((guess == test.y).double().mean())


def test_counts_go_up_only_where_they_are_asked_for():
    for values, sent in (({"label_weights": "counts"}, ["fedgenp/counts"]), ({}, [])):
        run = start(small(**values), engine="stacked")
        jobs = run._jobs(run.stages[0], run.progress)
        result = choice.start(run.plan, run.federation, "stacked", 0).play(jobs)
        assert list(result.extras) == sent
        for row, client in enumerate(run.federation.clients if sent else ()):
            counts = torch.bincount(client.train.y, minlength=CLASSES) + 1
            assert result.extras["fedgenp/counts"][row].tolist() == counts.tolist()


def test_only_running_statistics_of_batch_norm_stay():
    module = nn.Module()
    module.register_buffer("running_mean", torch.zeros(1))
    norm = nn.BatchNorm1d(1)
    for bn, kept in (("client", "kept"), ("aggregate", "both")):
        method = FedGenP(bn=bn)
        assert method.scope("other.running_mean", module).share == "both"
        assert method.scope("norm.weight", norm).share == "both"
        assert method.scope("norm.running_mean", norm).share == kept


def test_a_federation_that_lacks_a_class():
    def without(client):
        train = samples(9, 5)
        return Client(client.name, train.take(train.y != 2), client.val, client.test)

    fed = federation((9, 9)).map(without)
    run = start(small(label_weights="counts"), PROTOCOL, fed).play()
    assert server_of(run).tensors["available"].tolist() == [1, 1, 0]


def uneven():
    """A client smaller than a batch, one with a single class, and one with all."""

    def narrowed(client):
        train = client.train
        if client.name == "b":
            train = train.take(train.y == 1)
        return Client(client.name, train, client.val, client.test)

    return federation((3, 12, 11)).map(narrowed)


@pytest.mark.parametrize("bn", ["aggregate", "client"])
def test_uneven_clients_resumed_to_the_same_bits(bn, tmp_path):
    """With absentees, counts and the clients' own statistics on both engines."""
    method = small(bn=bn, label_weights="counts")
    protocol = fs.Protocol(rounds=4, epochs=1, batch=5, lr=0.1, participation=2)

    class Stop(Exception):
        pass

    def stop(run, line):
        if line["round"] == 2:
            raise Stop

    found = []
    for engine in ("loop", "stacked"):
        whole = start(method, protocol, uneven(), engine=engine).play()
        folder = tmp_path / engine
        with pytest.raises(Stop):
            start(method, protocol, uneven(), engine=engine, out=folder).play(stop)
        again = Run.resume(folder, uneven(), ToyNet, method=method, warn=lambda message: None)
        assert digest(state(again.play())) == digest(state(whole))
        assert all(t.isfinite().all() for t in state(whole).values() if t.is_floating_point())
        found.append(state(whole))
    assert largest_difference(*found) < 1e-9


def test_who_takes_part_alone_is_as_in_fedavg():
    """There is nobody to learn from; the second round's generator would only deceive."""
    protocol = PROTOCOL.replace(participation=0.1, rounds=3)
    alone, plain = start(small(), protocol).play(), start("fedavg", protocol).play()
    assert largest_difference(alone.progress.server.model, plain.progress.server.model) < 1e-12
    assert server_of(alone).numbers["rounds"] == 0


class Published(Staged):
    """The networks of the paper: convolutions of stride 2, a dense latent of 32, a linear head."""

    def __init__(self, shape, widths, pool, classes) -> None:
        super().__init__()
        layers, channels = [], shape[0]
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]
            channels = width
        layers.append(nn.Flatten())
        flat = nn.Sequential(*layers)(torch.zeros(2, *shape)).shape[1]
        self.stages = ("body",)
        self.body = nn.Sequential(*layers, nn.Linear(flat, 32))
        self.head = nn.Linear(32, classes)


@pytest.mark.parametrize(
    ("network", "parameters", "hidden", "generator"),
    [
        (((1, 28, 28), (6, 16), False, 10), 26_434, 256, 27_968),
        (((1, 28, 28), (6, 16), False, 26), 26_962, 256, 32_064),
        (((3, 84, 84), (16, 32, 64), True, 2), 25_954, 128, 12_992),
    ],
    ids=["mnist", "emnist", "celeba"],
)
def test_published_sizes(network, parameters, hidden, generator):
    model = Published(*network)
    assert sum(p.numel() for p in model.parameters()) == parameters
    facts = Facts("classification", network[3], network[0], ("a", "b"), width=32)
    server = FedGenP(hidden=hidden).init_server(dict(model.named_parameters()), facts)
    params, statistics = split(under("generator", FedGenP().broadcast(server, "b", 0).tensors))
    assert sum(t.numel() for t in params.values()) == generator
    assert sum(t.numel() for t in statistics.values()) == 2 * hidden
