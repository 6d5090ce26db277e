"""Over encoded messages every method learns what it learns in a loop, and scores the same."""

from __future__ import annotations

import pytest

import fedshift as fs
from fedshift import methods, tree
from tests.engines.flower.sites import kept_at, resumed, serve
from tests.methods.test_battery import COMPOSITIONS, PROTOCOL, make, start
from tests.toys import largest_difference

ALL = [name for name in methods.names() if not make(name).pooled]


@pytest.mark.parametrize("name", ALL + COMPOSITIONS)
def test_sites_equal_the_loop(name, tmp_path):
    protocol = PROTOCOL.replace(participation=2, reset_optimizer=False, momentum=0.5)
    one = start(name, protocol).play()
    other = serve(name, tmp_path, protocol).play()
    assert largest_difference(one.progress.server.model, other.progress.server.model) < 1e-9
    for method, s in one.progress.server.methods.items():
        theirs = other.progress.server.methods[method]
        assert largest_difference(dict(s.tensors), dict(theirs.tensors)) < 1e-9
        assert dict(s.numbers) == dict(theirs.numbers)
    for client in one.federation.names:
        mine = dict(one.progress.kept[client])
        assert largest_difference(mine, kept_at(tmp_path, client) if mine else {}) < 1e-9
    compare_lines(one, other)


def compare_lines(one, other):
    """Equal scores, losses and participants, round by round."""
    assert len(one.lines) == len(other.lines)
    for a, b in zip(one.lines, other.lines, strict=True):
        for field in ("stage", "round", "client", "participants", "left_out"):
            assert a.get(field) == b.get(field), field
        for field in ("mean", "worst", "val", "test", "personal_test", "personal_val"):
            assert a.get(field) == (None if b.get(field) is None else pytest.approx(b[field]))
        assert (a["loss"] is None) == (b["loss"] is None)
        for term, value in (a["loss"] or {}).items():
            assert value == pytest.approx(b["loss"][term], abs=1e-9)


@pytest.mark.parametrize("select", ["last", "best-val"])
def test_the_best_round_and_its_personal_models_come_back(select, tmp_path):
    protocol = PROTOCOL.replace(rounds=5, lr=0.8, select=select)
    one = start("fedbn", protocol, out=tmp_path / "loop").play()
    other = serve("fedbn", tmp_path / "sites", protocol, out=tmp_path / "server").play()
    if select == "best-val":
        assert one.progress.best.round == other.progress.best.round < 5, "choose other settings"
    compare_lines(one, other)
    mine = fs.load(tmp_path / "loop")
    for client in one.federation.clients:
        (folder,) = (tmp_path / "sites" / client.name).iterdir()
        theirs = fs.load(folder)  # each site has the run's models, its own among them
        assert largest_difference(dict(mine.model), dict(theirs.model)) < 1e-9
        assert list(theirs.kept) == [client.name]
        for unlike in (
            mine.predict(client.test.x, client=client.name)
            - theirs.predict(client.test.x, client=client.name),
        ):
            assert unlike.abs().max() < 1e-9
    assert not (tmp_path / "server" / "personal").exists()


@pytest.mark.parametrize("name", ["fedbn+scaffold", "fedlsi", "fedbr"])
def test_a_server_that_died_goes_on(name, tmp_path):
    """Whichever round it died in, and whether or not the sites had already played it."""
    protocol = PROTOCOL.replace(rounds=3, reset_optimizer=False, momentum=0.9, select="best-val")
    whole = serve(name, tmp_path / "whole", protocol, out=tmp_path / "server").play()
    rounds = sum(s.rounds for s in whole.stages)

    class Dead(Exception):
        pass

    for after in range(1, rounds + 2):
        state, out = tmp_path / f"sites{after}", tmp_path / f"server{after}"

        def die(site, exchange, answer, after=after):
            if exchange == after and site == "c":
                raise Dead
            return answer

        run = serve(name, state, protocol, out=out, change=die)
        with pytest.raises(Dead):
            run.play()
        again = resumed(run, state, out)
        assert (
            sum(s.rounds for s in again.stages[: again.progress.stage]) + again.progress.round
            == after - 1
        )
        again.play()
        assert tree.digest(again.selected[0]) == tree.digest(whole.selected[0])
        compare_lines(whole, again)


@pytest.mark.parametrize("select, more", [("last", 1), ("best-val", 2)])
def test_every_round_is_one_exchange_and_one_more_closes(select, more, tmp_path):
    """Where the last round need not be the best, the best one's model is handed over after it."""
    run = serve("fedbn", tmp_path, PROTOCOL.replace(rounds=4, select=select))
    carrier = run._carrier()
    run.play()
    assert carrier.exchanges == 4 + more
