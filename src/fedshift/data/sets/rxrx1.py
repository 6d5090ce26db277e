"""RxRx1: which small RNA was given to the cells in a picture? Four kinds of cells, many batches."""

from __future__ import annotations

import csv

from fedshift import keys
from fedshift.data.image_folder import Reader
from fedshift.data.masks import Entry
from fedshift.data.partition import split
from fedshift.data.sets import place, reading
from fedshift.errors import BadData
from fedshift.federation import Client, Federation

_CONTENTS = "metadata.csv and images/ (WILDS's rxrx1_v1.0)"
_COLUMNS = ("cell_type", "experiment", "plate", "well", "site", "sirna_id")
CELLS = ("HEPG2", "HUVEC", "RPE", "U2OS")
GROUPS = 4  # of a kind's experiments, of which two, three or four are clients
CLASSES = (  # the 48 that FRAug's code names; its paper speaks of 50
    13, 51, 54, 61, 65, 88, 161, 178, 189, 191, 198, 209, 228, 255, 285, 318, 326, 407, 440, 447,
    451, 457, 476, 501, 541, 563, 569, 689, 696, 704, 735, 775, 778, 859, 864, 865, 919, 940, 1034,
    1098, 1110, 1112, 1120, 1122, 1126, 1131, 1135, 1138,
)  # fmt: skip


def federation(name: str, seed: int = 0, size: int = 256, groups: int = 4) -> Federation:
    """FRAug's clients: for each kind of cells up to four groups of experiments, 48 classes.

    FRAug did not publish how it cut them. Here a kind's experiments are dealt in the order of their
    names, and of each client's images 70 % train, 10 % validate and 20 % test, class by class.

    Args:
        name: of the federation.
        seed: which image is for what.
        size: a side in pixels.
        groups: clients of a kind: 2, 3 or 4.
    """
    root = place.need("rxrx1", _CONTENTS, "rxrx1_v1.0")
    table = root / "metadata.csv"
    if not table.is_file():
        raise place.nothing("rxrx1", root, _CONTENTS)
    rows = list(csv.DictReader(reading.text(table).splitlines()))
    if not rows or not set(_COLUMNS) <= set(rows[0]):
        raise BadData(f"{table} has not the columns {', '.join(_COLUMNS)}: download it again")
    wanted = set(map(str, CLASSES))
    rows = [row for row in rows if row["sirna_id"] in wanted and row["cell_type"] in CELLS]
    reader = Reader(tuple(map(str, CLASSES)), (size, size), grey=False, mapped=True)
    clients = []
    for cell in CELLS:
        experiments = sorted({row["experiment"] for row in rows if row["cell_type"] == cell})
        if len(experiments) < GROUPS:
            raise BadData(f"{table} has fewer than {GROUPS} experiments of {cell}: complete it")
        for k in range(groups):
            own = set(experiments[k::GROUPS])
            entries = [
                Entry(
                    root / "images" / row["experiment"] / f"Plate{row['plate']}"
                    / f"{row['well']}_s{row['site']}.png",
                    row["sirna_id"],
                )
                for row in rows if row["experiment"] in own
            ]  # fmt: skip
            key = keys.fold(seed, "rxrx1", cell, k)
            cut = split(reader.read(entries), (0.7, 0.1, 0.2), seed=key)
            clients.append(Client(f"{cell.lower()}-{k + 1}", *cut))
    return Federation(
        name,
        tuple(clients),
        tuple(map(str, CLASSES)),
        recommended={"model": "small-cnn", "select": "best-val"},
    )
