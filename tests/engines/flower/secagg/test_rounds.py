"""Rounds whose uploads are summed under masks learn what a loop learns, but for the rounding."""

from __future__ import annotations

import math

import pytest
import torch

from fedshift import files, methods
from fedshift.engines.flower import codec
from fedshift.engines.flower.secagg.layout import Entry, Layout
from fedshift.engines.flower.secagg.member import SUMMED
from fedshift.engines.flower.secagg.summed import Summed
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.engines.flower.site import Site
from fedshift.errors import BadRun, BadValue, CannotCombine
from fedshift.privacy import Privacy
from tests.engines.flower.sites import InProcess, resumed, serve, sites_of
from tests.engines.flower.test_conformance import compare_lines
from tests.methods.test_battery import PROTOCOL, make, start
from tests.toys import federation, largest_difference

FINE = Secure(clip=1024, bits=50)
REFUSED = {
    "fedbr": "'fedbr' uploads 'fedbr/means' for the server to look at one by one",
    "fedcm": "'fedcm' uploads 'fedcm/way' for the server to look at one by one",
    "fedfa": "'fedfa' uploads 'fedfa/fedfa_.*' for the server to look at one by one",
    "fedfa-plus": "'fedfa-plus' uploads .* for the server to look at one by one",
    "fedgenp": "'fedgenp': the server's part of the method looks at what single sites uploaded",
    "fedlsi": "'fedlsi' weighs single elements by client",
    "importance": "'importance' weighs single elements by client",
}
SERVED = (
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedfa-h",
    "fedprox",
    "fraug",
    "local",
    "pfedavg",
    "scaffold",
    "fedbn+scaffold",
    "fedfa in sums",
)
OTHERS = [n for n in methods.names() if n not in (*REFUSED, *SERVED) and not make(n).pooled]


def summed_fedfa():
    return methods.make("fedfa", {"fedfa.statistics": "sums"})


@pytest.mark.parametrize(
    "name, weights",
    [
        *((name, "uniform") for name in SERVED),
        *((name, "samples") for name in ("fedavg", "scaffold", "fedfa-h", "fedfa in sums")),
    ],
)
def test_secure_rounds_equal_the_loop(name, weights, tmp_path):
    method = summed_fedfa() if name == "fedfa in sums" else make(name)
    protocol = PROTOCOL.replace(weights=weights, participation=2)
    one = start(method, protocol).play()
    other = serve(method, tmp_path, protocol, secure=FINE).play()
    # a difference grows in local steps; fedfa divides by a spread over clients of about 1e-3
    bound = 1e-6 if name == "fedfa in sums" else 1e-9
    assert largest_difference(one.progress.server.model, other.progress.server.model) < bound
    if bound == 1e-9:
        compare_lines(one, other)


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_method_is_served_or_named(name, tmp_path):
    """Whichever it is, it is never played to another result."""
    protocol = PROTOCOL.replace(rounds=1)
    try:
        run = serve(name, tmp_path, protocol, secure=FINE)
    except CannotCombine as refused:
        assert f"'{name}'" in str(refused)
        return
    one = start(name, protocol).play()
    model = run.play().progress.server.model
    assert largest_difference(one.progress.server.model, model) < 1e-6


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("bits", [16, 24])
def test_a_mean_is_off_by_half_a_step_at_most(bits, weights, tmp_path):
    secure = Secure(clip=1, bits=bits)
    protocol = PROTOCOL.replace(rounds=1, weights=weights)
    one = start("fedprox", protocol, fed=federation((17, 9, 12))).play()
    other = serve("fedprox", tmp_path, protocol, secure=secure).play()
    apart = largest_difference(one.progress.server.model, other.progress.server.model)
    assert secure.step / 100 < apart <= secure.step / 2 + 1e-12


def test_sums_are_off_by_half_a_step_for_each_site():
    """And whole numbers are summed as they are."""
    secure = Secure(clip=1, bits=8)
    entries = (
        Entry("extra/m/count", codec.Like(torch.int64, (2,)), False, False),
        Entry("extra/m/value", codec.Like(torch.float64, (3,)), False, False),
    )
    layout = Layout(entries, ())
    values = [torch.tensor([0.3, -1.0, 0.01 * k]).double() for k in range(5)]
    counts = [torch.tensor([k, -100]) for k in range(5)]
    parts = [
        layout.numbers({"extra/m/count": c, "extra/m/value": v}, {}, secure, 1)
        for c, v in zip(counts, values, strict=True)
    ]
    rows = layout.rows(sum(parts), {}, secure, [1] * 5, torch.device("cpu"))
    assert rows["extra/m/count"].sum(dim=0).tolist() == [10, -500]
    apart = (rows["extra/m/value"].sum(dim=0) - sum(values)).abs().max()
    assert 0 < apart <= 5 * secure.step / 2


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_need_single_uploads_are_refused_before_training(name, tmp_path):
    with pytest.raises(CannotCombine, match=REFUSED[name]) as refused:
        serve(make(name), tmp_path, secure=Secure())
    assert "\n" not in str(refused.value)


def test_no_upload_is_in_what_a_site_sends(tmp_path):
    """But for BatchNorm's counters, all that crosses is one vector under masks."""
    seen = []

    def watch(site, exchange, answer):
        seen.append(answer)
        return answer

    serve("scaffold", tmp_path, PROTOCOL.replace(rounds=1), change=watch, secure=Secure()).play()
    names = {n: p.dtype for packet in seen for n, p in packet.pieces.items()}
    assert names == {"model/conv.1.num_batches_tracked": "int64", SUMMED: "int64"}


def test_the_ring_is_as_small_as_sums_allow(tmp_path):
    def watch(site, exchange, answer):
        types.update(p.dtype for n, p in answer.pieces.items() if n == SUMMED)
        return answer

    types: set[str] = set()
    secure = Secure(clip=8, bits=22)
    serve("fedavg", tmp_path, PROTOCOL.replace(rounds=1), change=watch, secure=secure).play()
    assert types == {"int32"}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_site_that_goes_away_in_a_round_is_as_if_it_had_been_away(step, tmp_path):
    """In its trip, as keys are shared, or with its upload; it goes on from what it kept before."""
    warned: list[str] = []

    def away(site, exchange, answer):
        return None if site == "b" and exchange == step else answer

    def gone(site, exchange, answer):
        return None if site == "b" and exchange == 1 else answer

    protocol = PROTOCOL.replace(rounds=3)
    plain = serve("fedbn+scaffold", tmp_path / "plain", protocol, change=gone).play()
    run = serve(
        "fedbn+scaffold",
        tmp_path / "secure",
        protocol,
        change=away,
        secure=FINE,
        warn=warned.append,
    ).play()
    assert largest_difference(plain.progress.server.model, run.progress.server.model) < 1e-9
    rounds = [line for line in run.lines if line["client"] is None]
    assert [list(line["left_out"]) for line in rounds] == [["b"], [], []]


def test_below_the_threshold_the_run_stops_and_goes_on_later(tmp_path):
    def away(site, exchange, answer):
        return None if site in "bc" and exchange == 3 else answer

    run = serve("fedavg", tmp_path / "sites", change=away, secure=FINE, out=tmp_path / "out")
    with pytest.raises(BadRun, match="1 sites sent their upload, and a sum is opened for 2"):
        run.play()
    run = resumed(run, tmp_path / "sites", tmp_path / "out")
    assert run.secure == FINE
    run.play()
    plain = start("fedavg").play()
    assert largest_difference(plain.progress.server.model, run.progress.server.model) < 1e-9
    assert files.read_toml(tmp_path / "out" / "config.toml")["secure"]["bits"] == 50


def test_a_site_may_demand_it(tmp_path):
    def played(secure):
        fed, state = federation(), tmp_path / str(secure)
        makers = sites_of(fed, state)
        makers["b"] = lambda: Site("b", lambda: fed, state / "b", require_secure=True)
        run = serve("fedavg", state, fed=fed, carrier=InProcess(makers), secure=secure).play()
        return [line["left_out"] for line in run.lines if line["client"] is None]

    assert played(FINE) == [{}, {}]
    for left in played(None):
        assert list(left) == ["b"] and "demands secure aggregation" in left["b"]


def test_what_is_out_of_range_is_refused_at_the_site(tmp_path):
    with pytest.raises(BadRun, match=r"moves by more than 1e-06: raise clip in \[secure\]"):
        serve("fedavg", tmp_path / "clip", secure=Secure(clip=1e-6)).play()
    with pytest.raises(BadRun, match="has NaN or infinite values"):
        serve("fedavg", tmp_path / "nan", PROTOCOL.replace(lr=1e200), secure=FINE).play()


def test_a_false_upload_is_found_where_it_leaves_the_range(tmp_path):
    """A vector that is not masked as agreed makes a sum of random elements."""

    def lie(site, exchange, answer):
        if SUMMED not in answer.pieces or site != "b":
            return answer
        size = answer.pieces[SUMMED].shape
        false = codec.encode(codec.Message({}, {SUMMED: torch.zeros(size, dtype=torch.int64)}))
        return codec.Packet(answer.head, false.pieces)

    with pytest.raises(BadRun, match="sum of the uploads is out of range"):
        serve("fedavg", tmp_path, change=lie, secure=FINE).play()


@pytest.mark.parametrize("where", ["central", "local"])
def test_noise_goes_with_it(where, tmp_path):
    """Sites clip, and the server adds its noise to the sum; or sites add it before they mask."""
    private = Privacy(clip=0.2, noise=0.3, where=where, clip_extras=1.0)
    one = start("fedbn+scaffold", privacy=private).play()
    other = serve("fedbn+scaffold", tmp_path, secure=FINE, privacy=private).play()
    assert largest_difference(one.progress.server.model, other.progress.server.model) < 1e-9


def test_where_there_are_no_sites_it_is_refused():
    with pytest.raises(BadValue, match="between sites, and the loop engine has none"):
        start("fedavg", secure=Secure())


def test_one_site_alone_has_nothing_to_hide_in(tmp_path):
    with pytest.raises(BadRun, match="in a round of 1 site no sum hides it"):
        serve("fedavg", tmp_path, PROTOCOL.replace(participation=0.4), secure=FINE)


def test_weights_that_need_too_many_bits_are_refused():
    with pytest.raises(BadRun, match=r"weigh sites alike"):
        Secure(bits=52).width(2**12)
    assert Secure(bits=52).width(2**10) == 64 and math.log2(Secure().step) == -27


def test_what_stands_for_uploads_gives_its_sum_alone():
    from fedshift.engines.flower.secagg.summed import Hidden, summed

    rows = summed(torch.tensor([6.0, 9.0]).double(), [1, 2], torch.float32)
    assert isinstance(rows, Summed) and rows.shape == (2, 2) and rows.dtype == torch.float32
    weights = torch.tensor([1.0, 2.0]) / 3
    assert torch.tensordot(weights, rows, dims=1).tolist() == [2.0, 3.0]
    for look in (
        lambda: rows[0],
        lambda: rows.mean(dim=0),  # the plain mean is not known: sites weighed their uploads
        lambda: rows.sum(dim=0),
        lambda: torch.tensordot(weights.flip(0), rows, dims=1),
        lambda: rows * 2,
        lambda: rows.norm(),
        lambda: rows.amax(dim=0),
    ):
        with pytest.raises(Hidden, match="what single sites uploaded"):
            look()
