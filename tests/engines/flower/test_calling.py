"""How often a node looks for work."""

from __future__ import annotations

from fedshift.engines.flower import calling


def test_a_node_looks_again_soon_and_then_less_often(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(calling.time, "sleep", pauses.append)
    found = iter([None] * 12 + [7, None, 8])
    look = calling.eager(lambda **parts: next(found) if parts == {"state": "s"} else "wrong")
    assert look(state="s") == 7
    assert pauses[0] == 0.2 and pauses == sorted(pauses) and len(pauses) == 12
    assert pauses[-1] == 3, "then as seldom as Flower's own program"
    assert sum(p < 3 for p in pauses) > 5
    pauses.clear()
    assert look(state="s") == 8
    assert pauses == [0.2], "soon again after there was some"
