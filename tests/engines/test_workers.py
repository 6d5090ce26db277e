"""Worker processes: equal bits, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch

import fedshift as fs
from fedshift import data, tree
from fedshift.engines.arena import Arena, from_file, mapped_files
from fedshift.run import Run


def children() -> list[str]:
    """Command lines of this process's children."""
    listed = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if "fedshift" in line]


def play(workers: int, method: str) -> Run:
    protocol = fs.Protocol(
        rounds=2, steps=2, batch=8, lr=0.1, momentum=0.9, reset_optimizer=False, participation=3
    )
    fed = data.load("shifted-digits")
    run = Run(fed, method, protocol, "small-cnn", engine="loop", workers=workers, device="cpu")
    return run.play(lambda run, line: seen.append(len(children())))


seen: list[int] = []


def test_two_workers_give_the_bits_of_one_and_end():
    one, two = play(1, "fedbn+scaffold+mixup"), play(2, "fedbn+scaffold+mixup")
    assert seen == [0, 0, 2, 2]
    assert children() == []
    assert one.weights_sha256 == two.weights_sha256
    for client, kept in one.progress.kept.items():
        assert tree.digest(dict(kept)) == tree.digest(dict(two.progress.kept[client]))
    losses = [[line["loss"] for line in run.lines] for run in (one, two)]
    assert losses[0] == losses[1]


def test_what_cannot_be_rebuilt_stays_in_one_process():
    said: list[str] = []
    run = Run(
        data.load("shifted-digits"),
        "fedavg",
        fs.Protocol(rounds=1, steps=1),
        fs.models.build("mlp", (1, 16, 16), 10, key=0),
        engine="loop",
        workers=2,
        device="cpu",
        say=said.append,
    )
    assert run.workers == 1
    assert "this process alone" in said[0]


def test_arenas_grow_and_hold_every_type():
    arena = Arena()
    tensors = [
        torch.tensor(3, dtype=torch.int64),
        torch.zeros(0, 4),
        torch.randn(5, 7, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.arange(1000, dtype=torch.uint8),
    ]
    other = Arena(os.dup(arena.handle))
    first = arena.write(tensors[:1])
    assert torch.equal(other.read(first[0]), tensors[0])
    for place, tensor in zip(arena.write(tensors), tensors, strict=True):
        assert torch.equal(other.read(place), tensor) and other.read(place).dtype == tensor.dtype


def test_a_mapped_file_is_found_and_mapped_again(tmp_path: Path):
    path = tmp_path / "samples.bin"
    path.write_bytes(bytes(range(256)) * 64)
    whole = torch.from_file(str(path), shared=False, size=256 * 64, dtype=torch.uint8)
    part = whole[5000:6000].reshape(10, 100)
    where, nowhere = mapped_files([part, torch.zeros(10)])
    assert where is not None and where[0] == str(path)
    assert torch.equal(from_file(*where, "uint8", [10, 100]), part)
    assert nowhere is None
