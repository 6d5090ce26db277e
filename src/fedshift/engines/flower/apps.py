"""One ClientApp and one ServerApp of Flower for all methods, and the carrier between them.

This module and `simulation` are the only ones that import Flower, whose interfaces move every few
months. What travels is a `codec.Packet` in Flower's records; who sends it, waits for it and why it
did not come is decided here, and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedshift.engines.flower import codec, roll
from fedshift.engines.flower.apart import Answer
from fedshift.engines.flower.codec import Packet, Piece, Rejected
from fedshift.errors import BadRun

_STYPE = "fedshift"  # how a tensor's bytes are to be read; Flower's own way is never used
_POLL = 0.2  # seconds between looks for answers
_CUT_OFF = 60.0  # seconds to wait for sites that have just answered and are not connected
_REASONS = {
    1: "its app could not be loaded",
    2: "its app failed",
    3: "no answer in time, or it went away",
    5: "not connected",
    8: "its process ended, or took too long",
}


def pack(packet: Packet) -> RecordDict:
    """A packet in Flower's records: two arrays, for Flower takes several requests for each.

    One holds the model, which is the same for all sites and so is stored once, the other the rest.
    """
    arrays, index = {}, []
    for part in ("model", "rest"):
        model = part == "model"
        mine = {n: p for n, p in packet.pieces.items() if n.startswith("model/") == model}
        data = b"".join(p.data for p in mine.values())
        arrays[part] = Array("uint8", (len(data),), _STYPE, data)
        index += [[part, n, p.dtype, list(p.shape), len(p.data)] for n, p in mine.items()]
    head = {"json": packet.head, "index": json.dumps(index)}
    return RecordDict({"head": ConfigRecord(head), "tensors": ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Packet:
    """The packet in Flower's records."""
    if set(content) != {"head", "tensors"}:
        raise Rejected("it is no message of fedshift's")
    head, arrays = content["head"], content["tensors"]
    if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise Rejected("it is no message of fedshift's")
    for array in arrays.values():
        if array.stype != _STYPE:
            how = codec.short(array.stype)
            raise Rejected(f"its tensors are packed as '{how}', which is never opened")
    left = {name: memoryview(array.data) for name, array in arrays.items()}
    pieces = {}
    for part, name, dtype, shape, size in _index(head.get("index")):
        if part not in left or size > len(left[part]) or name in pieces:
            raise Rejected("its tensors are not those of its index")
        pieces[name] = Piece(dtype, shape, bytes(left[part][:size]))
        left[part] = left[part][size:]
    if any(len(rest) for rest in left.values()):
        raise Rejected("it holds more than its index says")
    text = head.get("json")
    if not isinstance(text, str):
        raise Rejected("its head is no text")
    return Packet(text, pieces)


def _index(text: object) -> list[tuple[str, str, str, tuple[int, ...], int]]:
    """Which tensors lie one after another in which array."""
    found = []
    try:
        for part, name, dtype, shape, size in json.loads(str(text)):
            words = all(isinstance(w, str) for w in (part, name, dtype))
            if not words or not all(type(n) is int and n >= 0 for n in (*shape, size)):
                raise TypeError
            found.append((part, name, dtype, tuple(shape), size))
    except (TypeError, ValueError, RecursionError):
        raise Rejected("its index cannot be read") from None
    return found


# ---------------------------------------------------------------------------- the site's side


def client_app(answer: Answer) -> ClientApp:
    """A ClientApp that lets a site answer: a function of its node's configuration and a packet."""
    app = ClientApp()

    @app.train()
    def play(message: Message, context: Context) -> Message:
        found = answer(context.node_config, unpack(message.content))
        return Message(pack(found), reply_to=message)

    return app


# ---------------------------------------------------------------------------- the server's side


def server_app(play: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """A ServerApp that lets a function play with the grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        play(grid, context.run_config)

    return app


class GridCarrier:
    """Carries packets over Flower's grid.

    Args:
        grid: what reaches the nodes.
        names: the sites that there may be.
        patience: seconds that a site has to say who it is, where nothing is registered.
        registered: nodes bear the names under which their keys were registered; where nothing is
            registered (on loopback), a site is who it says it is.
    """

    def __init__(
        self, grid: Grid, names: Sequence[str], registered: bool, patience: float = 60.0
    ) -> None:
        self._grid = grid
        self._names = tuple(names)
        self._registered = registered
        self._patience = patience
        self._met: dict[int, str] = {}  # nodes that have said who they are
        self._answered: set[str] = set()  # sites that did in the last exchange

    def ask(
        self, packets: Mapping[str, Packet], seconds: float
    ) -> tuple[dict[str, Packet], dict[str, str]]:
        """The answers that came in time, and why the others did not."""
        nodes = self._again(self._answered & set(packets))
        there = {site: packets[site] for site in packets if site in nodes}
        back, missing = self._exchange({nodes[s]: p for s, p in there.items()}, seconds)
        sites = {node: site for site, node in nodes.items()}
        reasons = {sites[node]: why for node, why in missing.items()}
        absent = {site: "not connected" for site in packets if site not in nodes}
        self._answered = {sites[node] for node in back}
        return {sites[node]: p for node, p in back.items()}, {**absent, **reasons}

    def _again(self, wanted: set[str]) -> dict[str, int]:
        """The nodes that are connected, once those wanted are among them, or after a while.

        A large message may keep the server from hearing for a moment that the others are there.
        """
        last = time.monotonic() + _CUT_OFF
        while True:
            nodes = self.connected()
            if wanted <= set(nodes) or time.monotonic() > last:
                return nodes
            time.sleep(_POLL)

    def close(self) -> None:
        """Nothing to end: nodes belong to their sites."""

    def connected(self) -> dict[str, int]:
        """The node of every site that is connected now."""
        if self._registered:
            named = {node.name: node.node_id for node in self._grid.get_nodes()}
            return {site: named[site] for site in self._names if site in named}
        nodes = set(self._grid.get_node_ids())
        self._met = {node: site for node, site in self._met.items() if node in nodes}
        new = {node: roll.question() for node in nodes - set(self._met)}
        if new:
            back, _ = self._exchange(new, self._patience)
            for node, packet in sorted(back.items()):
                site = codec.head_of(packet).get("site")
                if site in self._names and site not in self._met.values():
                    self._met[node] = site
        return {site: node for node, site in self._met.items()}

    def gather(self, at_least: int, seconds: float, say: Callable[[str], None]) -> None:
        """Wait until all sites are connected, or for a while; then go on with enough of them."""
        last = time.monotonic() + seconds
        known: set[str] = set()
        while True:
            there = set(self.connected())
            if there != known:
                known = there
                say(f"connected: {', '.join(n for n in self._names if n in there) or 'nobody'}")
            if len(there) == len(self._names):
                return
            if time.monotonic() > last:
                break
            time.sleep(_POLL)
        if len(known) < at_least:
            absent = ", ".join(f"'{n}'" for n in self._names if n not in known)
            raise BadRun(
                f"{len(known)} of {len(self._names)} sites are connected after {seconds:g} s, "
                f"fewer than the {at_least} that must: start {absent} (fedshift site run) and "
                "resume, or lower --min-sites"
            )

    def _exchange(
        self, packets: Mapping[int, Packet], seconds: float
    ) -> tuple[dict[int, Packet], dict[int, str]]:
        """Push to nodes and pull until all have answered or the time is over."""
        last = time.monotonic() + seconds
        order = list(packets)
        messages = [
            Message(pack(packets[n]), dst_node_id=n, message_type="train", ttl=seconds)
            for n in order
        ]
        pushed = dict(zip(order, self._grid.push_messages(messages)))
        del messages
        waiting = {identity: node for node, identity in pushed.items() if identity}
        back: dict[int, Packet] = {}
        missing = {node: "not connected" for node in order if not pushed.get(node)}
        while waiting and time.monotonic() < last:
            for reply, node in self._pull(waiting):
                if reply is None:
                    missing[node] = "its answer cannot be read"
                elif reply.has_error():
                    missing[node] = _reason(reply.error.code, reply.error.reason)
                else:
                    try:
                        back[node] = unpack(reply.content)
                    except Rejected as error:
                        missing[node] = str(error)
            if waiting:
                time.sleep(_POLL)
        return back, {**missing, **dict.fromkeys(waiting.values(), "no answer in time")}

    def _pull(self, waiting: dict[str, int]) -> list[tuple[Message | None, int]]:
        """The answers that are there; what cannot be read is looked at one by one (None)."""
        try:
            replies = list(self._grid.pull_messages(list(waiting)))
        except Exception:
            replies = []
            broken: list[tuple[Message | None, int]] = []
            for identity in list(waiting):
                try:
                    replies += list(self._grid.pull_messages([identity]))
                except Exception:
                    broken.append((None, waiting.pop(identity)))
            return broken + self._of(replies, waiting)
        return self._of(replies, waiting)

    @staticmethod
    def _of(
        replies: Sequence[Message], waiting: dict[str, int]
    ) -> list[tuple[Message | None, int]]:
        known = [r for r in replies if r.metadata.reply_to_message_id in waiting]
        return [(r, waiting.pop(r.metadata.reply_to_message_id)) for r in known]


def _reason(code: int, text: str) -> str:
    known = _REASONS.get(code, f"error {code}")
    return f"{known} ({codec.short(text, 200)})" if code in (0, 1, 2) or not text else known
