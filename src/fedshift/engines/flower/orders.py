"""Several of Flower's commands in one process: `… orders`, with their words as JSON on its input.

Each would take a process of its own, and a second to import all that Flower has; a deployment has
one for every site. Prints a line of JSON for each: what it printed, and what it raised.
"""

from __future__ import annotations

import importlib
import io
import json
import sys


def main() -> None:
    """Give all commands, whatever becomes of each."""
    app = importlib.import_module("flwr.cli.app").app
    out = sys.stdout
    for words in json.load(sys.stdin):
        printed, raised = io.StringIO(), ""
        streams = dict.fromkeys(("stdout", "stderr", "__stdout__", "__stderr__"), printed)
        # with --format json a command puts the process's first streams back
        vars(sys).update(streams)
        try:
            app(words, standalone_mode=False)
        except SystemExit:
            pass  # it has said why
        except Exception as error:
            raised = str(error)
        print(json.dumps([printed.getvalue(), raised]), file=out, flush=True)


if __name__ == "__main__":
    main()
