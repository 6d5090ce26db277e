"""`fedshift certs`, `site`, `deploy` and `status`: federations over real machines."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.cli import messages
from fedshift.errors import BadRun, BadValue, FedshiftError


def command(args: argparse.Namespace) -> None:
    """Do what was asked for."""
    {"certs": _certs, "site": _site, "deploy": _deploy, "status": _status}[args.command](args)


def _certs(args: argparse.Namespace) -> None:
    from fedshift.engines.flower import certs, processes

    processes.needed()  # it brings the package that makes keys
    made = certs.make(Path(args.folder), args.site or [], args.host or [])
    if args.json:
        messages.print_json({"made": [str(p) for p in made]})
    else:
        for path in made:
            print(path)
        if not made:
            print(f"nothing to do: all is in {args.folder}")


def _site(args: argparse.Namespace) -> None:
    from fedshift.engines.flower import node

    if args.do == "run":
        node.run(Path(args.file), messages.note, once=args.once)
        return
    if not args.name or not args.data:
        raise BadValue("a site needs --name and --data")
    path = Path(args.file)
    if path.exists():
        raise BadRun(f"{path} exists already: change it, or choose another name")
    table: dict[str, Any] = {"name": args.name, "data": args.data, "state": "state"}
    table |= {
        n: v for n in ("server", "ca", "key", "peers", "pretrained") if (v := getattr(args, n))
    }
    if args.allow:
        table["allow"] = args.allow
    if args.require_secure:
        table["require_secure"] = True
    files.write_toml(path, table)
    if args.peers:
        (path.parent / args.peers).expanduser().mkdir(parents=True, exist_ok=True)
    if args.key:
        from fedshift.engines.flower import certs, processes

        processes.needed()
        certs.pair(path.parent / args.key)
    try:
        found = _described(path)
    except FedshiftError:
        path.unlink()  # so that the same command can be given anew
        raise
    if args.json:
        messages.print_json({"file": str(path), **found})
    else:
        counts = ", ".join(f"{found[n]} {word}" for n, word in _COUNTS.items())
        print(
            f"{path}: site '{args.name}' with {counts} samples of {len(found['classes'])} classes"
        )


_COUNTS = {"train": "training", "val": "validation", "test": "test"}


def _described(path: Path) -> dict[str, Any]:
    """What the site would tell the server of its data: read here, so that mistakes show at once."""
    from fedshift.engines.flower.config import SiteConfig
    from fedshift.engines.flower.site import Site

    site = SiteConfig.read(path)
    return Site(site.name, site.federation, site.path(site.state), site.allow).describe()


def _deploy(args: argparse.Namespace) -> None:
    from fedshift.engines.flower import deploy
    from fedshift.engines.flower.config import Deployment
    from fedshift.report.read import read_run

    path = Path(args.file)
    least = None if args.min_sites is None else _whole(args.min_sites, "--min-sites")
    status = deploy.run(path, messages.note, resume=args.resume, min_sites=least)
    folder = Deployment.read(path).folder / "run"
    if args.json:
        messages.print_json({**status, "out": str(folder)})
        return
    if status.get("score"):
        from fedshift.report import Report

        print(Report([read_run(folder)]).table())
        print()
    print(f"run: {folder}  (report.html, metrics.jsonl, model.safetensors)")


def _status(args: argparse.Namespace) -> None:
    from fedshift.engines.flower.config import Deployment
    from fedshift.engines.flower.deploy import alive, in_words

    path = Path(args.file)
    folder = path if path.is_dir() else Deployment.read(path).folder
    if not (folder / "status.json").exists():
        raise BadRun(f"{folder} holds no deployment's run: start it with fedshift deploy")
    status: dict[str, Any] = files.read_json(folder / "status.json")
    if status["state"] in ("starting", "running") and not alive(status["pid"]):
        status |= {"state": "died", "message": "go on with fedshift deploy --resume"}
    if args.json:
        messages.print_json(status)
        return
    ago = time.time() - status["time"]
    message = f": {status['message']}" if status.get("message") else ""
    print(f"{status['method']}: {status['state']}{message} (written {ago:.0f} s ago)")
    for note in status["notes"]:
        print(f"  {note}")
    for entry in status["rounds"]:
        print(f"  {in_words(entry)}")
    _print_score(status)


def _print_score(status: Mapping[str, Any]) -> None:
    score = status.get("score")
    if score:
        print(f"  round {score['round']}: mean score {100 * score['mean']:.1f} %")


def _whole(text: str, what: str) -> int:
    if not text.isdigit():
        raise BadValue(f"{what} is '{text}': give a whole number")
    return int(text)
