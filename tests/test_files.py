"""Files are written whole or not at all: full disks, kills at every step, damaged files."""

import errno
import math
import os
import subprocess
import sys
import textwrap
import tomllib

import numpy as np
import pytest
import torch

from fedshift import files
from fedshift.errors import BadRun, BadValue

TREE = {"b/w": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([True]), "n": torch.tensor(7)}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def fails_with(number):
    def step(*_):
        raise OSError(number, os.strerror(number))

    return step


# --- errors of the disk


@pytest.mark.parametrize("step", ["_open", "_write", "_sync", "_replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(files, step, fails_with(errno.ENOSPC))
    with pytest.raises(BadRun, match=r"disk full while writing .*; free space and try again") as e:
        files.write_text(tmp_path / "a", "new")
    assert "\n" not in str(e.value)
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_inside_a_run_folder_the_remedy_is_to_resume(tmp_path, monkeypatch):
    (tmp_path / "config.toml").touch()
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.setattr(files, "_write", fails_with(errno.ENOSPC))
    with pytest.raises(BadRun, match=f"resume with: fedshift run --resume {tmp_path}"):
        files.write_text(tmp_path / "checkpoint" / "a", "new")


@pytest.mark.parametrize("step", ["_write", "_sync"])
def test_a_failed_append_is_taken_back(tmp_path, monkeypatch, step):
    path = tmp_path / "m.jsonl"
    files.append_lines(path, [{"round": 1}])

    def half(handle, *data):
        if data:
            os.write(handle, data[0][:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, step, half)
    with pytest.raises(BadRun, match="disk full"):
        files.append_lines(path, [{"round": 2}])
    assert path.read_text() == '{"round": 1}\n'


def test_no_permission_and_wrong_kinds(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadRun, match="share a name"):
        files.write_text(tmp_path / "file" / "a", "x")
    with pytest.raises(BadRun, match="share a name"):
        files.write_text(tmp_path / "folder", "x")
    with pytest.raises(BadRun, match="name too long"):
        files.write_text(tmp_path / ("x" * 300), "x")
    with pytest.raises(BadRun, match="not valid Unicode"):
        files.append_lines(tmp_path / "a", [{"a": "\udc80"}])
    monkeypatch.setattr(files, "_open", fails_with(errno.EACCES))
    with pytest.raises(BadRun, match="no permission"):
        files.write_text(tmp_path / "a", "x")
    assert names(tmp_path) == ["file", "folder"]


# --- in a process of its own: limits and kills

PRELUDE = """
import os, resource, signal, sys
from pathlib import Path
from fedshift import files
from fedshift.errors import BadRun
here = Path(sys.argv[1])
"""


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_a_real_limit_on_the_file_size(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "m.jsonl").write_text('{"round": 1}\n')
    done = run_python(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        for write in (
            lambda: files.write_bytes(here / "a", bytes(1000)),
            lambda: files.append_lines(here / "m.jsonl", [{"text": "x" * 1000}]),
        ):
            try:
                write()
            except BadRun as error:
                print(error)
        """,
        tmp_path,
    )
    assert done.stdout.count("file size limit reached while writing") == 2, done.stderr
    assert names(tmp_path) == ["a", "m.jsonl"]
    assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "m.jsonl").read_text() == '{"round": 1}\n'


# The child forks once for every step, and each fork kills itself before, halfway through or after
# that step: one interpreter start for all of them.
KILLS = """
import itertools
STEPS = ["_open", "_write", "_sync", "_replace", "_delete", "_sync_folder"]

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def armed(when):
    left = [when // 3]
    whole = {name: getattr(files, name) for name in STEPS}
    def make(name):
        def guarded(*args):
            if left[0]:
                left[0] -= 1
                return whole[name](*args)
            if when % 3 == 1 and name == "_write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            if when % 3 == 2:
                whole[name](*args)
            kill()
        return guarded
    for name in STEPS:
        setattr(files, name, make(name))

def every_kill(prepare, work, check):
    for when in itertools.count():
        folder = here / str(when)
        folder.mkdir()
        prepare(folder)
        child = os.fork()
        if not child:
            armed(when)
            work(folder)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        check(folder, killed)
        if not killed:
            print("kills", when)
            return
"""


def test_a_kill_at_any_step_leaves_the_old_file_or_the_new(tmp_path):
    done = run_python(
        KILLS
        + """
def prepare(folder):
    (folder / "a").write_text("old")

def check(folder, killed):
    text = (folder / "a").read_text()
    assert text in ("old", "new and longer") and (killed or text != "old")
    files.sweep(folder)
    assert os.listdir(folder) == ["a"]

every_kill(prepare, lambda folder: files.write_text(folder / "a", "new and longer"), check)
""",
        tmp_path,
    )
    assert done.stdout == "kills 18\n", done.stderr


def test_a_kill_at_any_step_of_an_append_leaves_whole_lines(tmp_path):
    done = run_python(
        KILLS
        + """
old, new = {"round": 1}, {"round": 2}
def check(folder, killed):
    records = files.read_lines(folder / "m")
    assert records in ([old], [old, new]) and (killed or records[1:])
    files.append_lines(folder / "m", [{"round": 3}])
    assert files.read_lines(folder / "m") == [*records, {"round": 3}]

every_kill(
    lambda folder: files.append_lines(folder / "m", [old]),
    lambda folder: files.append_lines(folder / "m", [new]),
    check,
)
""",
        tmp_path,
    )
    assert done.stdout == "kills 9\n", done.stderr


def test_a_kill_at_any_step_of_a_checkpoint_leaves_a_whole_one(tmp_path):
    done = run_python(
        KILLS
        + """
def fill(folder, name, text):
    temporary = files.temporary_folder(folder / name)
    for part in ("a", "b"):
        files.write_text(temporary / part, text)
    files.commit_folder(temporary, folder / name)

def work(folder):
    fill(folder, "round-2", "2")
    fill(folder, "round-2", "2 again")  # replaces one of the same name
    files.keep_newest(folder, "round-")

def check(folder, killed):
    files.sweep(folder)
    found = files.folders(folder, "round-")
    assert found and sorted(os.listdir(folder)) == [p.name for p in found]
    for checkpoint in found:
        a, b = ((checkpoint / part).read_text() for part in ("a", "b"))
        assert a == b
    assert killed or [p.name for p in found] == ["round-2"] and a == "2 again"

every_kill(lambda folder: fill(folder, "round-1", "1"), work, check)
""",
        tmp_path,
    )
    assert done.stdout.startswith("kills "), done.stderr
    assert int(done.stdout.split()[1]) > 60


def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new(tmp_path):
    done = run_python(
        KILLS
        + """
def fill(folder, text):
    temporary = files.temporary_folder(folder / "best")
    files.write_text(temporary / "a", text)
    files.commit_folder(temporary, folder / "best")

def check(folder, killed):
    files.sweep(folder)
    assert os.listdir(folder) == ["best"]
    text = (folder / "best" / "a").read_text()
    assert text in ("old", "new") and (killed or text == "new")

every_kill(lambda folder: fill(folder, "old"), lambda folder: fill(folder, "new"), check)
""",
        tmp_path,
    )
    assert done.stdout.startswith("kills "), done.stderr


def test_a_failed_commit_keeps_the_folder_that_was_there(tmp_path, monkeypatch):
    final = tmp_path / "round-1"
    final.mkdir()
    (final / "a").write_text("old")
    new = files.temporary_folder(final)
    replace = files._replace

    def full(source, target):
        if source == new:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(files, "_replace", full)
    with pytest.raises(BadRun, match="disk full"):
        files.commit_folder(new, final)
    assert names(tmp_path) == ["round-1"] and (final / "a").read_text() == "old"


# --- tensors


def test_tensors_and_facts_come_back_and_equal_content_is_equal_bytes(tmp_path):
    meta = {"round": 3, "clients": ["b", "a"], "seed": None, "loss": math.nan}
    files.save_tensors(tmp_path / "1", TREE, meta)
    files.save_tensors(tmp_path / "2", dict(reversed(TREE.items())), dict(reversed(meta.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    tree, facts = files.load_tensors(tmp_path / "1")
    assert list(tree) == sorted(TREE) and all(torch.equal(tree[n], TREE[n]) for n in TREE)
    assert facts == {**meta, "loss": None}


def test_views_shared_memory_and_odd_tensors_are_stored(tmp_path):
    base = torch.randn(4, 6)
    tree = {"whole": base, "same": base, "t": base.t(), "part": base[1], "none": torch.zeros(0, 3)}
    tree |= {"half": base.bfloat16(), "grad": base.clone().requires_grad_()}
    files.save_tensors(tmp_path / "a", tree, {})
    back, _ = files.load_tensors(tmp_path / "a")
    assert all(torch.equal(back[n], tree[n]) and back[n].dtype == tree[n].dtype for n in tree)
    assert (tmp_path / "a").stat().st_size < 2000  # a part does not bring its whole along


def test_damaged_and_foreign_tensor_files_are_refused(tmp_path):
    path = tmp_path / "a"
    files.save_tensors(path, TREE, {"round": 1})
    whole = path.read_bytes()
    for wrong in (b"", whole[:4], whole[:60], whole[:-1], b"\xff" * 100, whole + b"x"):
        path.write_bytes(wrong)
        with pytest.raises(BadRun, match="cut short or damaged"):
            files.load_tensors(path)
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(BadRun, match="checksum"):
        files.load_tensors(path)
    from safetensors.torch import save

    path.write_bytes(save(TREE))
    with pytest.raises(BadRun, match="not written by fedshift"):
        files.load_tensors(path)
    path.write_bytes(save(TREE, {"fedshift": "[]"}))
    with pytest.raises(BadRun, match="unreadable header"):
        files.load_tensors(path)
    with pytest.raises(BadRun, match="does not exist"):
        files.load_tensors(tmp_path / "missing")


# --- text formats


def test_lines_of_a_killed_writer(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert files.read_lines(path) == [{"a": 1}]
    files.append_lines(path, [{"a": np.float32(2), "b": math.inf}])
    assert path.read_text() == '{"a": 1}\n{"a": 2.0, "b": null}\n'
    path.write_text('{"a": 1}\n[]\n{"a": 2}\n')
    with pytest.raises(BadRun, match="line 2"):
        files.read_lines(path)
    files.write_lines(path, [{"b": "ü"}])
    assert files.read_lines(path) == [{"b": "ü"}]


def test_the_end_of_the_last_line_is_found_far_back(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("{}\n" + "x" * 200_000)
    files.append_lines(path, [])
    assert path.read_text() == "{}\n"


def test_json_is_sorted_and_knows_no_nan(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"b": math.nan, "a": (torch.tensor(1), np.ones(2))})
    assert path.read_text().index('"a"') < path.read_text().index('"b"')
    assert files.read_json(path) == {"a": [1, [1.0, 1.0]], "b": None}
    with pytest.raises(BadValue, match="object"):
        files.write_json(path, {"a": object()})
    path.write_text("{")
    with pytest.raises(BadRun, match="not valid JSON"):
        files.read_json(path)


def test_toml_round_trip(tmp_path):
    table = {
        "text": 'quote " back \\ line \n tab \t del \x7f ü',
        "yes": True,
        "whole": -3,
        "big": 10**17,
        "small": 1e-08,
        "large": 1e22,
        "one": 1.0,
        "infinite": math.inf,
        "list": [1, 2.5, "a", [True], {"x y": 1, "z": []}],
        "empty": {},
        "nested": {"a b": {"c.d": 1, "": 2}, "é": 3, "after": 4},
    }
    files.write_toml(tmp_path / "a.toml", table)
    assert files.read_toml(tmp_path / "a.toml") == table
    assert math.isnan(tomllib.loads(files.dumps_toml({"a": math.nan}))["a"])
    assert files.dumps_toml({"a": None, "b": {"c": None}}) == "[b]\n"


def test_toml_refusals(tmp_path):
    with pytest.raises(BadValue, match=r"protocol\.lr"):
        files.dumps_toml({"protocol": {"lr": object()}})
    with pytest.raises(BadValue, match="None"):
        files.dumps_toml({"a": [None]})
    (tmp_path / "a.toml").write_text("a = \n")
    with pytest.raises(BadRun, match="line 1"):
        files.read_toml(tmp_path / "a.toml")
    with pytest.raises(BadRun, match="does not exist"):
        files.read_toml(tmp_path / "b.toml")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadRun, match="not a text file"):
        files.read_toml(tmp_path / "a.toml")
