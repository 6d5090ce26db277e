"""What privacy has cost: epsilon as dp-accounting tells it, and who is counted how often."""

from __future__ import annotations

import math

import pytest

import fedshift as fs
from fedshift import ledger
from fedshift.errors import BadRun
from fedshift.ledger import Ledger
from fedshift.privacy import Privacy
from fedshift.run import Run
from tests.methods.test_battery import PROTOCOL
from tests.test_privacy import start

DELTA = 1e-5


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def delta_of(epsilon: float, noise: float) -> float:
    """Delta of one Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    a, b = 1 / (2 * noise), epsilon * noise
    return normal_cdf(a - b) - math.exp(epsilon) * normal_cdf(-a - b)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (1.0, 3), (2.0, 10), (0.7, 24)])
def test_epsilon_is_dp_accountings_for_so_many_gaussian_mechanisms(noise, rounds):
    """Composed one by one by its accountant of privacy losses, which knows nothing of sqrt(m)."""
    dp_accounting = pytest.importorskip("dp_accounting")
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    found = ledger.epsilon(noise, rounds, DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)
    assert delta_of(found, noise / math.sqrt(rounds)) == pytest.approx(DELTA, rel=1e-6)


def test_nothing_sent_costs_nothing_and_no_noise_has_no_bound():
    assert ledger.epsilon(1.0, 0, DELTA) == 0.0
    assert ledger.epsilon(0.0, 1, DELTA) is None


def test_data_exchanged_for_others_cost_as_half_the_noise_does():
    """Two updates of norm C at most are 2 C apart at most, one and none C."""
    found = ledger.cost(Privacy(noise=2.0), 3)
    assert found["epsilon"] == ledger.epsilon(2.0, 3, DELTA)
    assert found["epsilon_exchange"] == ledger.epsilon(1.0, 3, DELTA)
    assert found["delta"] == DELTA


def test_the_client_that_took_part_most_often_counts():
    """Two of three in each of four rounds: no client in more than four, somebody in three."""
    protocol = PROTOCOL.replace(rounds=4, participation=2)
    run = start("fedavg", Privacy(noise=2.0), protocol).play()
    rounds = [line["participants"] for line in run.lines if line["client"] is None]
    most = max(sum(c in r for r in rounds) for c in "abc")
    assert 3 <= most <= 4
    assert run.lines[-1]["epsilon"] == ledger.epsilon(2.0, most, DELTA)


def test_local_and_central_noise_on_one_client_cost_the_same():
    found = [start("fedavg", Privacy(noise=2.0, where=w)).play() for w in ("central", "local")]
    assert found[0].spent == found[1].spent
    assert found[0].spent["epsilon"] == ledger.epsilon(2.0, PROTOCOL.rounds, DELTA)


def test_what_is_played_again_with_the_systems_noise_counts_again(tmp_path):
    """A round that was sent and then lost has left the client all the same."""
    private = Privacy(noise=2.0, source="system")

    class Stop(Exception):
        pass

    def stop(run, line):
        raise Stop

    protocol = PROTOCOL.replace(rounds=2)
    first = start("fedavg", private, protocol, out=tmp_path / "run")
    with pytest.raises(Stop):
        first.play(stop)
    jobs = first._jobs(first.stages[0], first.progress)
    first._ledger.note(j.client for j in jobs)  # a second round that never came back
    from tests.test_privacy import NoNorm, federation, make

    again = Run.resume(
        tmp_path / "run", federation(), NoNorm, method=make("fedavg"), warn=lambda message: None
    ).play()
    assert again.spent["epsilon"] == ledger.epsilon(2.0, 3, DELTA)


def test_an_account_is_written_before_anything_leaves(tmp_path):
    path = tmp_path / "releases.json"
    book = Ledger(path)
    assert book.most == 0
    book.note(["a", "b"])
    book.note(["a"])
    assert Ledger(path).counts == {"a": 2, "b": 1} and Ledger(path).most == 2


def test_without_dp_accounting_noise_is_refused(monkeypatch):
    monkeypatch.setattr(ledger.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadRun, match=r"pip install 'fedshift\[dp\]'"):
        start("fedavg", Privacy(noise=1.0))
    start("fedavg", Privacy(noise=0.0))


def test_the_report_says_what_it_cost():
    run = start("fedavg", Privacy(noise=2.0)).play()
    told = run.report()
    epsilon = f"epsilon {run.spent['epsilon']:.4g} at delta 1e-05"
    assert epsilon in told.table()
    page = told.html()
    assert "Differential privacy" in page and "protects nobody" in page
    assert "<dt>noise</dt><dd>2</dd>" in page
    assert (
        "Differential privacy"
        not in fs.Run(run.whole, "fedavg", PROTOCOL, run.spec, device="cpu", warn=lambda m: None)
        .play()
        .report()
        .html()
    )
