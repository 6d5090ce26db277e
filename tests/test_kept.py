"""What clients keep: memory and files grow with those that took part, not with the population."""

from __future__ import annotations

import pytest
import torch

import fedshift as fs
from fedshift import checkpoint, files, tree
from fedshift.federation import Client, Federation
from fedshift.kept import Kept
from tests.methods.test_battery import start
from tests.toys import samples


def many(count: int) -> Federation:
    """So many clients with the same six samples."""
    all_have, none = samples(6, 0), samples(0, 0)
    clients = tuple(Client(f"c{k:03d}", all_have, none, none) for k in range(count))
    return Federation("many", clients, tuple("abc"))


def test_a_client_begins_with_what_all_begin_with_and_owns_a_copy():
    start = {"w": torch.zeros(2)}
    kept = Kept(["a", "b"], start)
    one, two = kept.own("a")["w"], kept.own("a")["w"]
    assert kept["a"]["w"] is start["w"] and one is not start["w"] and one is not two
    assert torch.equal(one, start["w"])


def test_an_update_leaves_the_former_and_keeps_the_order_of_clients_and_names():
    first = Kept(["b", "a"], {})
    second = first.updated({"a": {"y": torch.ones(1), "x": torch.ones(1)}})
    assert list(second) == ["b", "a"] and len(second) == 2
    assert list(second["a"]) == ["x", "y"] and dict(first["a"]) == {} == dict(second["b"])


def test_a_name_that_is_no_clients_is_an_error():
    with pytest.raises(KeyError, match="c"):
        Kept(["a"], {})["c"]


def run_of(count: int, **options) -> fs.Run:
    protocol = fs.Protocol(rounds=1, batch=5, participation=2)
    return start("scaffold+fedbn", protocol, fed=many(count), **options)


def held(run: fs.Run) -> int:
    """Bytes of all tensors that a run holds of its clients."""
    kept = run.progress.kept
    every = [kept.initial, *kept.touched.values()]
    return sum(tree.nbytes(dict(t)) for t in every)


def test_a_run_begins_with_one_tree_for_all_clients():
    assert held(run_of(5)) == held(run_of(50)) > 0


def test_memory_and_checkpoints_grow_with_the_clients_that_took_part(tmp_path):
    sizes = {}
    for count in (40, 400):
        run = run_of(count, out=tmp_path / str(count)).play()
        took = {c for line in run.lines for c in line.get("participants", ())}
        assert set(run.progress.kept.touched) == took and len(took) == 2
        folder = tmp_path / str(count)
        saved = next((folder / "checkpoint").iterdir())
        names = files.load_tensors(saved / "tensors.safetensors")[0]
        assert {n.split("/")[1] for n in names if n.startswith("kept/")} == took
        sizes[count] = held(run), sum(t.nbytes for t in names.values())
        assert sorted(p.stem for p in (tmp_path / str(count) / "personal").iterdir()) == sorted(
            took
        )
    assert sizes[40] == sizes[400]


def test_who_has_not_taken_part_resumes_with_the_beginning_of_the_run(tmp_path):
    """The checkpoint holds it: the model that is given again may begin elsewhere."""
    server = checkpoint.Server({"w": torch.ones(1)}, {})
    kept = Kept(["a", "b"], {"w": torch.full((2,), 3.0)}).updated({"b": {"w": torch.ones(2)}})
    best = checkpoint.Best(0.5, 1, server.model, Kept(kept, kept.initial))
    checkpoint.save(tmp_path, checkpoint.Progress(0, 1, 1, server, kept, best), "")
    found = checkpoint.load(tmp_path, "")
    assert found is not None and found.best is not None
    assert list(found.kept.touched) == ["b"] and not found.best.kept.touched
    for own in (found.kept, found.best.kept):
        assert torch.equal(own["a"]["w"], kept.initial["w"])
    assert torch.equal(found.kept["b"]["w"], torch.ones(2))


def test_what_is_odd_about_very_many_clients_is_said_once():
    protocol = fs.Protocol(rounds=1, batch=7)  # they have six samples
    for count, lines in ((10, 10), (11, 1)):
        said: list[str] = []
        start("fedavg", protocol, fed=many(count), warn=said.append)
        assert len(said) == lines and "'c000'" in said[0]
    assert said[0].endswith("its batches repeat samples (so it is with 10 more clients)")
