"""`docs/methods/README.md`: all methods in one table."""

from __future__ import annotations

import inspect

from docs.make import curve, markdown, page

from fedshift import methods
from fedshift.cli.listing import first_line
from fedshift.files import read_text

PATH = page.HOME / "README.md"
_BEFORE = "before, down / up"
_COLUMNS = ("method", "in a line", "paper", "scores of", "extra down", "extra up", _BEFORE)


def text() -> str:
    """The table, and how to read the pages."""
    plain = page.seen("fedavg")
    down, up = plain.bytes("down"), plain.bytes("up")
    rows = [_row(name, down, up) for name in page.names()]
    return f"""<!-- Made by `make docs`: change the files of the methods, not this one. -->

# Methods

{markdown.table(rows, _COLUMNS, _COLUMNS[-3:])}

Extra bytes are what one client gets and sends in a round of training beyond FedAvg's {down:,} each
way, on `{curve.DATA}` with the network `{curve.MODEL}`; `before` are those of all rounds that come
before training. Scores are of the global model or of each client's own (personal). Methods can be
joined, as in `fedbn+mixup`.

## How to read the pages

What crosses is not declared but seen: every method is played for two short rounds of every stage,
and what goes through the engine is written down. `fedshift show METHOD --wire` does the same for
other settings (`--set`) and networks (`--model`).

| column | meaning |
| :-- | :-- |
| (first) | `down` to the client, `up` to the server, `kept` by the client |
| kind | parameters, statistics, numbers, a client's own state, or what else the method declares |
| use | of what goes up: the server needs the `mean` or `sum` over clients alone, which a secure \
sum can carry, or looks at each client's (`individual`); of what goes down: the same for all, or \
the client's own |
| when | in which rounds; `once` in a stage of one round |

With `--json`, the last line is an object with `method`, `data`, `model`, `clients` (how many),
`settings` (shortened to save time), `stages` (`name`, `program`, `rounds` played, `bytes_down` and
`bytes_up` of the last), `pooled` (data are handed over whole) and `items`. An item is one tensor or
number of one client: `way`, `name`, `shape`, `bytes`, `kind`, `use` (`mean`, `sum`, `individual`;
`alike`, `own`), `stage`, `rounds` (those of the played ones in which it crossed, from 1) and
`of_model` (of the network itself, not the method).

Curves are means over seeds {curve.SEEDS_IN_WORDS}, with a band of one standard deviation. Every
method has its default hyperparameters, unless its page says otherwise, and the one protocol that
the federation recommends: nothing was tuned for it. The federation is small; differences of a few
percent mean little.
"""


def _row(name: str, down: int, up: int) -> dict[str, str]:
    kind, wire = methods.method_class(name), page.seen(name)
    row = {
        "method": f"[{name}]({name}.md)",
        "in a line": first_line(inspect.getdoc(kind)).rstrip("."),
        "paper": kind.paper,
        "scores of": kind.view,
    }
    if wire.pooled:
        return {**row, _BEFORE: "all data"}
    row["extra down"] = _signed(wire.bytes("down") - down)
    row["extra up"] = _signed(wire.bytes("up") - up)
    before = [s.name for s in wire.stages if s.program in ("visit", "collect")]
    if before:
        once = (sum(wire.bytes(way, stage) for stage in before) for way in ("down", "up"))
        row[_BEFORE] = " / ".join(f"{n:,}" for n in once)
    return row


def _signed(number: int) -> str:
    return f"{number:,}".replace("-", "−")


def stale() -> bool:
    """Whether the file is missing or not what would be made."""
    return not PATH.is_file() or read_text(PATH) != text()
