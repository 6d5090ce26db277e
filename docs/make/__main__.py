"""Makes `docs/methods/`: a page for every method, and a table of all (`make docs`).

    python -m docs.make                  # texts; trains the methods that have no curve yet
    python -m docs.make --train fedfa    # trains again, for methods whose numbers have changed
    python -m docs.make --check          # writes nothing; exits 1 where a page is not current

Run it in the root of the repository.
"""

from __future__ import annotations

import argparse
import sys

from docs.make import curve, index, page

from fedshift import files, methods
from fedshift.errors import FedshiftError


def main(argv: list[str] | None = None) -> int:
    """Make or check the pages; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.make", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="only these (default: all)")
    parser.add_argument("--train", action="store_true", help="make their curves anew")
    parser.add_argument("--check", action="store_true", help="only say which pages are not current")
    args = parser.parse_args(argv)
    try:
        names = [methods.method_class(name).name for name in args.methods] or page.names()
    except FedshiftError as error:
        print(f"docs.make: error: {error}", file=sys.stderr)
        return 2
    if args.check:
        return _check(names)
    for name in dict.fromkeys(["fedavg", *names]):  # which all others are drawn beside
        chosen = name in names
        if not curve.data_path(name).is_file() or (args.train and chosen):
            print(f"training {name}", flush=True)
            files.write_json(curve.data_path(name), curve.train(name))
    for name in names:
        files.write_text(curve.picture_path(name), curve.draw(name))
        files.write_text(page.path(name), page.text(name))
    files.write_text(index.PATH, index.text())
    return 0


def _check(names: list[str]) -> int:
    wrong = [str(p) for name in names for p in page.stale(name)]
    wrong += [str(index.PATH)] if index.stale() else []
    for text in wrong:
        print(f"{text} is not what would be made: run `make docs`")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
