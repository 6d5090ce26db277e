"""The curve of one method: trained once, kept as numbers, drawn from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift import comparison, data, methods
from fedshift._version import __version__
from fedshift.files import read_json
from fedshift.hparam import hypers
from fedshift.report.learning import learning_curve
from fedshift.report.read import RunRecord
from fedshift.report.summary import Value
from fedshift.wire.observe import shortened

HOME = Path(__file__).parent.parent / "methods" / "curves"
DATA, MODEL, METRIC = "shifted-digits", "small-cnn", "accuracy"
SEEDS = (0, 1)
SEEDS_IN_WORDS = " and ".join(map(str, SEEDS))
BASELINE = "fedavg"


def data_path(name: str) -> Path:
    """Where a method's numbers are."""
    return HOME / f"{name}.json"


def picture_path(name: str) -> Path:
    """Where its picture is."""
    return HOME / f"{name}.svg"


def train(name: str) -> dict[str, Any]:
    """Train a method over the seeds; its scores, round by round, as plain values.

    Where it takes thousands of steps that need not be shown, its quick values are taken.
    """
    kind = methods.method_class(name)
    slow = bool(shortened(methods.make(name)))
    quick = {n: h.quick for n, h in hypers(kind).items() if slow and h.quick is not None}
    runs = comparison.compare(
        data.load(DATA),
        [methods.make(name, quick)],
        seeds=SEEDS,
        model=MODEL,
        engine="loop",
        workers=1,
        device="cpu",
        warn=lambda text: None,
    ).records
    return {
        "method": name,
        "quick": quick,
        "view": kind.view,
        "fedshift": __version__,
        "planned": runs[0].protocol["rounds"],
        "seeds": [{"seed": run.seed, **_scores(run)} for run in runs],
    }


def _scores(run: RunRecord) -> dict[str, list[Any]]:
    """The rounds that were scored, with the mean over clients and the worst of them."""
    rounds = run.scored("test", run.view)
    scores = [list(r.scores("test", run.view).values()) for r in rounds]
    return {
        "rounds": [r.round for r in rounds],
        "mean": [round(math.fsum(s) / len(s), 6) for s in scores],
        "worst": [round(min(s), 6) for s in scores],
    }


def series(name: str, what: str) -> dict[int, Value]:
    """The "mean" or the "worst" score over the seeds, by the round."""
    seeds = read_json(data_path(name))["seeds"]
    found: dict[int, list[float]] = {}
    for seed in seeds:
        for round, score in zip(seed["rounds"], seed[what], strict=True):
            found.setdefault(round, []).append(score)
    return {round: Value.of(scores) for round, scores in found.items()}


def draw(name: str) -> str:
    """The picture: mean and worst client, FedAvg's mean in grey."""
    lines = {f"{name}, mean of clients": series(name, "mean")}
    lines[f"{name}, worst client"] = series(name, "worst")
    grey = {} if name == BASELINE else {"fedavg, mean of clients": series(BASELINE, "mean")}
    return learning_curve(lines, grey, f"Test {METRIC} on {DATA}", name)


def caption(name: str) -> str:
    """What the picture shows, with the numbers of the last round."""
    kept = read_json(data_path(name))
    of = {"global": "the global model", "personal": "each client's own model"}[kept["view"]]
    mean, worst = series(name, "mean"), _last(series(name, "worst"))
    tuned = " and after the final tuning" if max(mean) > kept["planned"] else ""
    beside = "" if name == BASELINE else "; in grey FedAvg's mean"
    ends = f"mean {_last(mean)}, worst client {worst}"
    if name != BASELINE:
        ends += f"; FedAvg's mean {_last(series(BASELINE, 'mean'))}"
    text = (
        f"Test {METRIC} of {of}, after each of {kept['planned']} rounds of the recommended "
        f"protocol{tuned}, with the network `{MODEL}`: mean over clients and worst client{beside}. "
        f"Lines are means over seeds {SEEDS_IN_WORDS}, bands one standard deviation. At the end "
        f"(selection rule `last`), in %: {ends}."
    )
    if kept["quick"]:
        values = ", ".join(f"`{n}={_plain(v)}`" for n, v in kept["quick"].items())
        text += f" Not with the defaults, which take long, but with the quick values {values}."
    return text


def _last(points: Mapping[int, Value]) -> str:
    value = points[max(points)]
    return f"{100 * value.mean:.1f} ± {100 * (value.std or 0.0):.1f}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
