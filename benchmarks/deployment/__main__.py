"""What a round costs over processes of this machine: `python -m benchmarks.deployment SITES…`.

For each number of sites: seconds of a round and bytes per site of FedAvg (small-cnn on the embedded
digits, five local steps of 16), the same bytes through an echo app, and the memory of the server's
and one site's processes at their highest, looked at twice a second. Prints a table in Markdown.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import fedshift as fs
from fedshift import files
from fedshift.engines.flower import certs, deploy, guard, processes

ROOT = Path(__file__).parents[2]
ROUNDS = 6
DATA = "benchmarks.deployment.clients:federation"
NODE = (
    "import sys; from pathlib import Path; from fedshift.engines.flower import node; "
    "node.run(Path(sys.argv[1]), lambda text: None, module=sys.argv[2])"
)


def main() -> None:
    """Measure for every number of sites."""
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for count in [int(word) for word in sys.argv[1:]] or [3, 10]:
        own = measure(count, guard.MODULE, guard.MODULE)
        os.environ["FEDSHIFT_ECHO_BYTES"] = str(own["bytes"])
        echo = measure(count, *["benchmarks.deployment.echo"] * 2)
        rows.append((count, own, echo))
        print("|", count, "|", " | ".join(cells(own, echo)), "|", flush=True)
    print("| sites | s/round | echo, s/round | bytes each way | server, MB | site, MB |")


def cells(own: dict[str, Any], echo: dict[str, Any]) -> list[str]:
    """A row of the table."""
    return [
        f"{own['seconds']:.1f} ({own['low']:.1f} to {own['high']:.1f})",
        f"{echo['seconds']:.1f} ({echo['low']:.1f} to {echo['high']:.1f})",
        f"{own['bytes']:,}",
        f"{own['server']:.0f}",
        f"{own['site']:.0f}",
    ]


def measure(count: int, site_module: str, server_module: str) -> dict[str, Any]:
    """One deployment: median, least and most seconds of a round but the first, bytes, memory."""
    names = [f"s{k:02d}" for k in range(count)]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        port = processes.free_port()
        certs.make(folder / "certs", names, ["127.0.0.1"])
        started = []
        for name in names:
            table = {"name": name, "data": DATA, "server": f"127.0.0.1:{port}", "device": "cpu"}
            tls = {"ca": "../certs/ca.crt", "key": f"../certs/{name}.key"}
            files.write_toml(folder / name / "site.toml", {**table, **tls})
            words = [sys.executable, "-c", NODE, str(folder / name / "site.toml"), site_module]
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        table = {
            "sites": names,
            "method": "fedavg",
            "model": "small-cnn",
            "address": f"127.0.0.1:{port}",
            "wait": 600,
            "protocol": {"rounds": ROUNDS, "steps": 5, "batch": 16},
            "ca": "certs/ca.crt",
            "certificate": "certs/server.crt",
            "key": "certs/server.key",
            "keys": "certs",
        }
        files.write_toml(folder / "deploy.toml", table)
        watch = Watch(os.getpid(), started[0].pid)
        try:
            status = deploy.run(folder / "deploy.toml", lambda text: None, module=server_module)
        finally:
            watch.over.set()
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
        seconds = [entry["seconds"] for entry in status["rounds"]][1:]
        lines = folder / "run" / "run" / "metrics.jsonl"
        sent = [i["bytes_up"] for i in files.read_lines(lines)] if lines.exists() else [0]
        return {
            "seconds": statistics.median(seconds),
            "low": min(seconds),
            "high": max(seconds),
            "bytes": sent[0],
            "server": watch.most["server"],
            "site": watch.most["site"],
        }


class Watch(threading.Thread):
    """The most memory that the server's processes and one site's have had, in MB (RSS)."""

    def __init__(self, server: int, site: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.most = {"server": 0.0, "site": 0.0}
        self._server, self._site = server, site
        self.start()

    def run(self) -> None:
        """Look twice a second."""
        while not self.over.wait(0.5):
            listed = subprocess.run(
                ["ps", "-eo", "pid=,ppid=,rss=,args="], capture_output=True, text=True
            ).stdout
            rows = [line.split(None, 3) for line in listed.splitlines()]
            known = {int(r[0]): (int(r[1]), int(r[2]), r[3]) for r in rows if len(r) == 4}
            site = below(known, [self._site])
            link = [
                p
                for p, (parent, _, words) in known.items()
                if parent == self._server and "flower-superlink" in words
            ]
            for name, whole in (("site", site), ("server", below(known, link))):
                size = sum(known[p][1] for p in whole) / 1024
                self.most[name] = max(self.most[name], size)


def below(known: dict[int, tuple[int, int, str]], roots: list[int]) -> set[int]:
    """Processes and their descendants."""
    found = {p for p in roots if p in known}
    while more := {p for p, (parent, _, _) in known.items() if parent in found} - found:
        found |= more
    return found


if __name__ == "__main__":
    assert fs.__version__
    main()
