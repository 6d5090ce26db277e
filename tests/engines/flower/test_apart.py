"""Answers in another process: they come whole, and what ends without one is told at once."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from fedshift.engines.flower import apart, codec
from fedshift.engines.flower.apart import Apart
from fedshift.engines.flower.codec import Message

ASKED = {"run": "r", "exchange": 3, "token": "t"}
TENSORS = {
    "w": torch.randn(3, 4).double(),
    "empty": torch.zeros(0, 2),
    "b": torch.randn(2).bfloat16(),
}


def question(**more) -> codec.Packet:
    return codec.encode(Message({**ASKED, **more}, TENSORS))


def why(answer, **more) -> str:
    """How an answer says that it is none."""
    asked = question(**more)
    with pytest.raises(codec.Rejected) as refused:
        codec.check_answer(codec.head_of(Apart(answer)({}, asked)), "trip", "a", ASKED)
    return str(refused.value)


def test_an_answer_comes_whole_from_another_process():
    def answer(node, packet):
        back = codec.decode(packet)
        return codec.encode(Message({**back.head, **node, "pid": os.getpid()}, back.tensors))

    found = Apart(answer)({"partition": 2}, question())
    assert dict(found.pieces) == dict(question().pieces)
    head = codec.head_of(found)
    assert head["pid"] != os.getpid() and head["partition"] == 2 and head["exchange"] == 3


def test_who_dies_is_told_at_once():
    began = time.monotonic()
    ended = "the site failed: its process ended: "
    assert why(lambda *_: os._exit(7), seconds=600) == f"{ended}exit code 7"
    assert why(lambda *_: os.kill(os.getpid(), signal.SIGTERM), seconds=600) == f"{ended}SIGTERM"
    assert "memory is short" in why(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert time.monotonic() - began < 30


def test_who_hangs_is_ended_at_its_limit(capfd):
    assert why(lambda *_: time.sleep(600), seconds=1).endswith("it took longer than 1 s")
    assert "test_apart.py" in capfd.readouterr().err, "where it hung is in the log"


def test_who_ignores_its_limit_is_killed(monkeypatch):
    monkeypatch.setattr(apart, "_GRACE", 0.2)
    monkeypatch.setattr(apart.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    assert why(lambda *_: time.sleep(600), seconds=0.5).endswith("it took longer than 0.5 s")


def test_what_is_raised_is_raised_here():
    def answer(node, packet):
        raise ValueError("the disk is on fire")

    with pytest.raises(RuntimeError, match="ValueError: the disk is on fire"):
        Apart(answer)({}, question())


def test_a_process_that_is_never_asked_ends():
    one = Apart(lambda node, packet: packet)
    one._line.close()
    assert os.waitstatus_to_exitcode(os.waitpid(one._pid, 0)[1]) == 0
