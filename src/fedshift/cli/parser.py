"""What may stand on the command line, and complaints that name the nearest of what may."""

from __future__ import annotations

import argparse
import difflib
from typing import NoReturn

from fedshift._version import __version__
from fedshift.cli import options
from fedshift.errors import FedshiftError, UnknownName

COMMANDS = {
    "run": "train one method on a federation",
    "compare": "train several methods over several seeds; one table, one page",
    "list": "list methods, data or models",
    "show": "say what a method does, takes, sends and keeps",
    "predict": "label new data with the model of a run",
    "reproduce": "play a table of a paper, and set ours beside the published numbers",
    "certs": "make the keys and certificates of a federation over real machines",
    "site": "describe a site of such a federation (init), or connect it (run)",
    "deploy": "serve such a federation and train over its sites",
    "status": "say how far a deployment is, and who took part",
}
LISTS = ("methods", "data", "models")


class UsageError(FedshiftError):
    """A command line that cannot be understood."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors of the package."""

    def error(self, message: str) -> NoReturn:
        """Complain in one line."""
        raise UsageError(f"{message}: see {self.prog} --help")


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of a command line.

    >>> parse(["run", "fedprox", "--rounds", "3"]).rounds
    '3'
    """
    parser, commands = _build()
    first = next((a for a in argv if not a.startswith("-")), None)
    if first is not None and first not in commands:
        raise UnknownName("command", first, commands)
    args, rest = parser.parse_known_args(argv)
    wrong = [word for word in rest if word.startswith("-")] or rest
    if args.command == "compare" and wrong and not wrong[0].startswith("-"):
        args.methods += rest  # methods may stand before and after options
    elif wrong:
        _complain(wrong[0], commands[args.command], commands)
    if args.command == "list" and args.what not in LISTS:
        raise UnknownName("list", args.what, LISTS)
    return args


def _complain(word: str, parser: Parser, commands: dict[str, Parser]) -> NoReturn:
    if not word.startswith("-"):
        raise UsageError(f"'{word}' is one word too many: see {parser.prog} --help")
    name = word.partition("=")[0]
    if name in _flags(parser):  # a flag that takes no value, given one
        raise UsageError(f"{name} takes no value: see {parser.prog} --help")
    homes = [command for command, other in commands.items() if name in _flags(other)]
    if homes:
        raise UsageError(f"{name} is an option of 'fedshift {homes[0]}', not of '{parser.prog}'")
    near = difflib.get_close_matches(name[2:], [f[2:] for f in _flags(parser)], n=2)
    hint = f"did you mean {' or '.join('--' + n for n in near)}?" if near else "see --help"
    raise UsageError(f"unknown option '{name}' of '{parser.prog}': {hint}")


def _flags(parser: Parser) -> set[str]:
    return {f for action in parser._actions for f in action.option_strings if f.startswith("--")}


def _build() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="fedshift",
        description="Federated learning over clients whose data look different.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fedshift {__version__}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {
        name: sub.add_parser(name, help=text, description=_sentence(text), allow_abbrev=False)
        for name, text in COMMANDS.items()
    }
    _run(commands["run"])
    _compare(commands["compare"])
    commands["list"].add_argument("what", metavar="WHAT", help=" | ".join(LISTS))
    _show(commands["show"])
    _predict(commands["predict"])
    _reproduce(commands["reproduce"])
    _certs(commands["certs"])
    _site(commands["site"])
    _deploy(commands["deploy"])
    commands["status"].add_argument("file", metavar="DEPLOY.toml", help="its file, or its folder")
    for command in commands.values():
        command.add_argument(
            "--json", action="store_true", help="print one JSON object as the last line"
        )
    return parser, commands


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _run(parser: Parser) -> None:
    parser.add_argument(
        "method",
        metavar="METHOD",
        nargs="?",
        help="fedprox, several joined as in fedbn+mixup, or one of your own: my.py:Mine",
    )
    parser.add_argument(
        "--resume", metavar="FOLDER", help="continue the run saved there, as it was configured"
    )
    options.add(parser, seeds=False)


def _compare(parser: Parser) -> None:
    parser.add_argument("methods", metavar="METHOD", nargs="*", help="methods, as for run")
    parser.add_argument("--resume", metavar="FOLDER", help="continue the comparison saved there")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="spread the runs over a Ray cluster (auto, HOST:PORT, or local to start one here); "
        "--out must be a folder that all its machines see",
    )
    options.add(parser, seeds=True)


def _show(parser: Parser) -> None:
    parser.add_argument("method", metavar="METHOD", help="fedprox, fedbn+mixup, or my.py:Mine")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a hyperparameter (may be repeated)"
    )
    parser.add_argument(
        "--model",
        metavar="WORD",
        help="the network on which it is shown: a name, or nets.py:Net (default: the method's)",
    )
    parser.add_argument("--wire", action="store_true", help="only what it sends and keeps")


def _predict(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    parser.add_argument(
        "--data",
        required=True,
        metavar="NEW",
        help="an .npz file with x (and y where known), a folder of images (in folders named like "
        "the classes where known; for masks, images/ and masks/), or a federation's name",
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--client", metavar="NAME", help="predict with this client's own model")
    who.add_argument(
        "--unseen",
        action="store_true",
        help="predict for a site that never took part, from its inputs alone",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.csv",
        help="where the table goes (default: stdout); masks go to FILE.npz or into a folder",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def _reproduce(parser: Parser) -> None:
    parser.add_argument(
        "experiment", metavar="EXPERIMENT", nargs="?", help="a table, such as fedfa/table3"
    )
    parser.add_argument(
        "--list", action="store_true", help="the experiments, and which have their data here"
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument(
        "--settings", nargs="+", metavar="TEXT", help="only blocks whose title has one of these"
    )
    parser.add_argument("--seeds", metavar="N", help="how many (default: the recipe's)")
    parser.add_argument("--rounds", metavar="N", help="fewer rounds than the paper's")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two rounds of two steps, one seed; a stand-in where the data are not there",
    )
    parser.add_argument(
        "--pretrained", metavar="FILE", help="ImageNet's weights, where the paper begins with them"
    )
    parser.add_argument(
        "--jobs", metavar="N", help="rows at a time, each in a process of its own (default: 1)"
    )
    for name in ("engine", "workers", "device", "dtype", "out"):
        options.add_one(parser, name)


def _certs(parser: Parser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where they go; what is there stays")
    parser.add_argument(
        "--host",
        action="append",
        metavar="HOST",
        help="the server's name or address, as sites reach it (may be repeated)",
    )
    parser.add_argument(
        "--site", action="append", metavar="NAME", help="a site that gets keys (may be repeated)"
    )


def _site(parser: Parser) -> None:
    parser.add_argument("do", choices=("init", "run"), help="write the site's file, or connect it")
    parser.add_argument("file", metavar="SITE.toml", help="the site's file")
    parser.add_argument("--name", metavar="NAME", help="init: the site's name")
    parser.add_argument(
        "--data",
        metavar="WHERE",
        help="init: a folder of images, an .npz file, or data.py:function",
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="init: the server's address")
    parser.add_argument("--ca", metavar="FILE", help="init: the CA's certificate, from the server")
    parser.add_argument("--key", metavar="FILE", help="init: the site's key; made where missing")
    parser.add_argument(
        "--allow",
        action="append",
        metavar="KIND",
        help="init: a kind of content that may leave, such as parameters (may be repeated; "
        "default: all)",
    )
    parser.add_argument(
        "--require-secure",
        action="store_true",
        help="init: no upload in a run without secure aggregation",
    )
    parser.add_argument(
        "--peers",
        metavar="FOLDER",
        help="init: the other sites' public keys, SITE.pub, for secure aggregation; made where "
        "missing",
    )
    parser.add_argument(
        "--pretrained",
        metavar="FILE",
        help="init: the site's copy of the weights that a run begins with",
    )
    parser.add_argument("--once", action="store_true", help="run: give up when the connection ends")


def _deploy(parser: Parser) -> None:
    parser.add_argument("file", metavar="DEPLOY.toml", help="the deployment's file")
    parser.add_argument("--resume", action="store_true", help="go on with the run in its folder")
    parser.add_argument(
        "--min-sites",
        metavar="N",
        help="sites that a round needs (default: the file's)",
    )
