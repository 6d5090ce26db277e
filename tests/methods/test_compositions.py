"""Pairs of methods that papers use: both parts act, and both engines agree.

FedFA's table 10 puts each augmentation beside FedAvg and beside FedFA; local batch norm goes with
anything. FedSAM differentiates whatever stands beside it, in the stacked engine under vmap.
"""

from __future__ import annotations

import pytest

from tests.methods.test_battery import PROTOCOL, start, state
from tests.toys import largest_difference

AUGMENTATIONS = ["mixup", "manifold-mixup", "mixstyle", "moex", "dac-sc"]
OTHERS = [
    "fedbn+embedding-noise",
    "fedbn+fedsam",
    "fedfa+fedsam",
    "fraug+fedsam",
    "fedbn+fedrobust",
    "fedfa+fedrobust",
    "fedbn+fedmix",
    "fedfa+fedmix",
    "fedbn+harmofl",
]
PAIRS = [f"{base}+{name}" for base in ("fedfa", "fedbn") for name in AUGMENTATIONS] + OTHERS
SHORT = PROTOCOL.replace(steps=2)


@pytest.mark.parametrize("pair", PAIRS)
def test_both_act_and_engines_agree(pair):
    loop, stacked = (start(pair, SHORT, engine=e).play() for e in ("loop", "stacked"))
    assert stacked.engine_name == "stacked"
    assert largest_difference(state(loop), state(stacked)) < 1e-9
    for part in pair.split("+"):
        alone = start(part, SHORT).play()
        assert difference(loop, alone) > 1e-6, f"beside {part}, the other does nothing"


def difference(a, b) -> float:
    """How far apart two runs' global networks are, in what both have."""
    a, b = a.progress.server.model, b.progress.server.model
    names = set(a) & set(b)
    return largest_difference({n: a[n] for n in names}, {n: b[n] for n in names})
