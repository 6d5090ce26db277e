"""FedFA-h in whole runs: the histograms that travel, the term that aligns them, each switch."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift.methods.fedfa_h import FedFAH
from fedshift.net import Net
from fedshift.parts.histogram import histogram, limits, symmetric_kl
from fedshift.parts.style import as_maps
from tests.methods.test_battery import start, state
from tests.methods.test_fedfa import SMALL, Channels, extra_bytes
from tests.toys import ToyNet, federation, largest_difference

PROTOCOL = fs.Protocol(rounds=2, epochs=1, batch=5, lr=0.1)
FIRST = PROTOCOL.replace(rounds=1)


def features(run, client: str = "a") -> torch.Tensor:
    """The maps of the convolution on a client's training data, by the global model in eval mode."""
    net = Net(run.plan.model, run.progress.server.model).at({})
    return as_maps(net.output(run.federation[client].train.x, ("conv",)).stage("conv"))


def term(line) -> float | None:
    return line["loss"].get("histogram")


def test_a_single_client_s_histogram_against_all_its_features_at_once():
    """With one client the global model is the local one. Batches of 5 leave a last one of 2."""
    run = start(FedFAH(), FIRST, federation((17,))).play()
    maps = features(run)
    bounds = limits(maps)
    kept = run.progress.kept["a"]
    assert torch.allclose(kept["fedfa-h/low"], bounds[0])
    assert torch.allclose(kept["fedfa-h/high"], bounds[1])
    found = run.progress.server.methods["fedfa-h"].tensors["histogram"]
    assert found.shape == (4, 8)
    assert torch.allclose(found, histogram(maps, bounds, 8, 0.01), atol=1e-10)
    assert torch.allclose(found.sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_server_takes_the_plain_mean(weights):
    """At rate 0 all clients keep one model, but for batch norm, which this network has not."""

    def plain():
        return ToyNet(dropout=0.0, norm=False)

    protocol = FIRST.replace(lr=0.0, weights=weights)
    run = fs.Run(federation(), FedFAH(), protocol, plain, dtype="float64", device="cpu").play()
    each = [histogram(features(run, c), limits(features(run, c)), 8, 0.01) for c in "abc"]
    found = run.progress.server.methods["fedfa-h"].tensors["histogram"]
    assert torch.allclose(found, torch.stack(each).mean(0), atol=1e-10)


def one_step(**options) -> tuple[float, fs.Run]:
    """The term in the one step of the second round, at rate 0, on all data of one client."""

    def plain():
        return ToyNet(dropout=0.0, norm=False)

    fed = federation((12, 12))
    protocol = PROTOCOL.replace(lr=0.0, batch=12, steps=1)
    run = fs.Run(fed, FedFAH(**options), protocol, plain, dtype="float64", device="cpu").play()
    line = next(i for i in run.lines if i["client"] == "a" and i["round"] == 2)
    return term(line), run


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_term_is_lambda_times_the_divergence(reduction):
    """A batch of all data has the client's own histogram; the mean over clients is another."""
    value, run = one_step(align=0.3, reduction=reduction)
    own, other = (histogram(features(run, c), limits(features(run, c)), 8, 0.01) for c in "ab")
    apart = symmetric_kl(own, 0.5 * (own + other))
    assert value == pytest.approx(0.3 * getattr(apart, reduction)().item(), rel=1e-9)
    assert value > 0


def test_range_bins_and_temperature_change_the_term():
    base = one_step()[0]
    # a batch of all data has the client's limits
    assert one_step(value_range="batch")[0] == pytest.approx(base, rel=1e-9)
    assert one_step(bins=24)[0] != pytest.approx(base, rel=1e-3)
    assert one_step(tau=0.1)[0] != pytest.approx(base, rel=1e-3)


def test_limits_of_small_batches_are_not_the_client_s():
    a, b = (start(FedFAH(value_range=r), PROTOCOL).play() for r in ("client", "batch"))
    terms = [term(run.lines[-4]) for run in (a, b)]
    assert None not in terms and terms[0] != pytest.approx(terms[1], rel=1e-6)


def test_the_first_round_has_no_term_and_is_fedavg_s():
    run, plain = start(FedFAH(), FIRST).play(), start("fedavg", FIRST).play()
    assert set(run.lines[-1]["loss"]) == {"task"}
    assert largest_difference(run.progress.server.model, plain.progress.server.model) == 0


def test_a_client_s_first_round_has_no_term_either():
    """Its channels have no limits yet; the term is 0 there, and not in its next rounds."""
    protocol = PROTOCOL.replace(rounds=5, participation=2)
    run = start(FedFAH(), protocol).play()
    before: dict[str, int] = {}
    for line in run.lines:
        if line["client"] and line["loss"] and line["round"] > 1:
            assert (term(line) == 0) == (before.get(line["client"], 0) == 0)
        if line["client"] and line["loss"]:
            before[line["client"]] = before.get(line["client"], 0) + 1
    assert set(before) == {"a", "b", "c"} and min(before.values()) > 1
    first = {
        c: next(i["round"] for i in run.lines if i["client"] == c and i["loss"]) for c in "abc"
    }
    assert max(first.values()) > 1, "somebody joins later"


def test_it_pulls_histograms_together():
    """Trained on the term alone, clients end nearer to the mean histogram than they began."""
    protocol = fs.Protocol(rounds=12, epochs=1, batch=12, lr=0.5)

    def plain():
        return ToyNet(dropout=0.0, norm=False)

    def last_to_first(align: float) -> float:
        method = FedFAH(align=align, tau=0.1)
        fed = federation((12, 12, 12))
        run = fs.Run(fed, method, protocol, plain, dtype="float64", device="cpu").play()
        rounds = [term(line) / align for line in run.lines if line["client"] is None and term(line)]
        return rounds[-1] / rounds[0]

    assert last_to_first(1.0) < 0.7 * last_to_first(1e-9)


def test_bytes_of_histograms():
    """8 bins of 256 channels, in four bytes: 8 KiB up, and 8 down from the second round on."""
    up, down = extra_bytes(FedFAH(), Channels, SMALL)
    assert up == [8 * 256 * 4] * 2
    assert down == [0, 8 * 256 * 4]
    assert up[1] + down[1] == 16 * 1024


def test_the_stage_may_be_chosen():
    def size(**options):
        run = start(FedFAH(**options), FIRST).play()
        return run.progress.server.methods["fedfa-h"].tensors["histogram"].shape[0]

    assert size() == size(stage="conv") == size(stage="1") == 4, "the last stage that gives maps"
    assert size(stage="hidden") == 8, "every sample of a vector is one position"
    with pytest.raises(fs.FedshiftError, match="conv"):
        size(stage="konv")


def test_switched_off_it_costs_nothing():
    run, plain = start(FedFAH(align=0.0)).play(), start("fedavg").play()
    assert [i["bytes_up"] for i in run.lines] == [i["bytes_up"] for i in plain.lines]
    assert not any(run.progress.kept.values())


def test_both_engines_at_the_paper_s_temperature():
    """The slope of the term grows with 1 / tau^2, and with it what rounding does."""
    runs = [start(FedFAH(), engine=e).play() for e in ("loop", "stacked")]
    assert largest_difference(state(runs[0]), state(runs[1])) < 1e-6


def test_soft_labels_do_not_matter():
    run = start("fedfa-h+mixup").play()
    assert set(run.lines[-1]["loss"]) == {"task", "histogram"}
