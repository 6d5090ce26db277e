"""Sites and a server in one process: every message is encoded and decoded, nothing else differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import fedshift as fs
from fedshift import files
from fedshift.engines.flower import roll
from fedshift.engines.flower.codec import Packet
from fedshift.engines.flower.server import ServerRun
from fedshift.engines.flower.site import Site
from tests.methods.test_battery import PROTOCOL, make
from tests.toys import federation

Change = Callable[[str, int, Packet], Packet | None]


class InProcess:
    """Carries packets to sites of this process.

    `change(site, exchange, answer)` may spoil an answer, or lose it (None). Sites are made anew for
    every packet, as Flower does with its processes: so whatever lasts lies on their disk.
    """

    def __init__(self, sites: Mapping[str, Callable[[], Site]], change: Change | None = None):
        self.sites = dict(sites)
        self.change = change
        self.packets = 0
        self.exchanges = 0

    def ask(self, packets, seconds):
        self.exchanges += 1
        back, missing = {}, {}
        for name, packet in packets.items():
            self.packets += 1
            assert all(isinstance(p.data, bytes) for p in packet.pieces.values())
            if name not in self.sites:
                missing[name] = "not connected"
                continue
            answer = self.sites[name]().answer(packet)
            if self.change is not None:
                answer = self.change(name, self.exchanges, answer)
            if answer is None:
                missing[name] = "no answer in time"
            else:
                back[name] = answer
        return back, missing

    def close(self):
        pass


def sites_of(fed: fs.Federation, state: Path, **options) -> dict[str, Callable[[], Site]]:
    """A site for each client, with a state folder of its own."""

    def maker(name: str) -> Callable[[], Site]:
        return lambda: Site(name, lambda: fed, state / name, **options)

    return {name: maker(name) for name in fed.names}


def elsewhere(fed: fs.Federation, carrier: InProcess) -> fs.Federation:
    """The server's view of a federation, from what its sites tell."""
    told = {}
    for name in fed.names:
        back, _ = carrier.ask({name: roll.question()}, 1)
        if name in back:
            told[name] = roll.read(name, back[name])
    return roll.federation(fed.name, fed.names, told, fed.recommended)


def serve(
    method,
    state: Path,
    protocol: fs.Protocol = PROTOCOL,
    fed: fs.Federation | None = None,
    change: Change | None = None,
    model="tests.toys:ToyNet",
    **options,
) -> ServerRun:
    """A run over sites of this process; `carrier` may be given to act on them."""
    fed = fed or federation()
    carrier = options.pop("carrier", None) or InProcess(sites_of(fed, state))
    view = elsewhere(fed, carrier)
    carrier.change, carrier.exchanges = change, 0
    options.setdefault("warn", lambda message: None)
    return ServerRun(
        view,
        make(method) if isinstance(method, str) else method,
        protocol,
        model,
        dtype="float64",
        device="cpu",
        carrier=lambda: carrier,
        **options,
    )


def resumed(run: ServerRun, state: Path, out: Path) -> ServerRun:
    """A run that died, gone on from its folder."""
    carrier = InProcess(sites_of(federation(), state))
    return ServerRun.resume(
        out,
        elsewhere(federation(), carrier),
        method=run.method,
        carrier=lambda: carrier,
        warn=lambda message: None,
    )


def kept_at(state: Path, client: str) -> dict:
    """What a site has kept last."""
    newest = sorted(state.glob(f"{client}/*/kept/*.safetensors"))[-1]
    return files.load_tensors(newest)[0]
