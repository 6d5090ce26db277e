"""The entry point: parse, call the command, and turn errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from fedshift.cli import messages
from fedshift.cli.parser import parse
from fedshift.errors import FedshiftError

OK, FAILED, WRONG, STOPPED = 0, 1, 2, 130
# Not named like the modules, whose commands they are: `list` and `run` mean other things in Python.
_HOMES = {
    "run": "fedshift.cli.train",
    "compare": "fedshift.cli.compare",
    "list": "fedshift.cli.listing",
    "show": "fedshift.cli.show",
    "predict": "fedshift.cli.predict",
    "reproduce": "fedshift.cli.reproduce",
    **dict.fromkeys(("certs", "site", "deploy", "status"), "fedshift.cli.sites"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code.

    0: done; 2: something that the user can mend, in the last line of stderr; 130: stopped by
    Ctrl-C. A bug shows its traceback, and so does everything with FEDSHIFT_DEBUG=1.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except FedshiftError as error:
        return _wrong(str(error))
    except KeyboardInterrupt as error:
        messages.note(messages.one_line(str(error)) or "interrupted")
        return STOPPED
    except BrokenPipeError:  # whoever read our output has seen enough
        _print_no_more()
        return FAILED
    except SystemExit as ended:  # argparse, after --help and --version
        return ended.code if isinstance(ended.code, int) else OK
    except OSError as error:  # what no module expected: a name too long, stdout on a full disk
        place = f" ({error.filename})" if error.filename else ""
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        return _wrong(f"{reason}{place}: check the path, its permissions and the room on the disk")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        return _wrong(
            f"the device ran out of memory ({messages.one_line(str(error))[:80]}): "
            "lower --batch, give --chunk, or take --device cpu"
        )


def _dispatch(argv: list[str]) -> int:
    args = parse(argv)
    command: Any = importlib.import_module(_HOMES[args.command])
    command.command(args)
    sys.stdout.flush()
    return OK


def _wrong(text: str) -> int:
    if os.environ.get("FEDSHIFT_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    try:
        sys.stdout.flush()  # so that the error is the last line, also where both go to one place
    except OSError:  # stdout itself is the trouble
        _print_no_more()
    messages.error(text)
    return WRONG


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    messages.warning(str(message))
