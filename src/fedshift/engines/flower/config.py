"""What a site and a deployment are told in TOML files; paths in them are relative to the file.

# site.toml                                   # deploy.toml
name = "north"                                sites = ["north", "south"]
data = "photos?size=64"                       method = "fedbn"
state = "state"                               model = "small-cnn"
server = "fl.example.org:8443"                address = "0.0.0.0:8443"
allow = ["parameters", "statistics"]          out = "run"
ca = "ca.crt"                                 min_sites = 2
key = "north.key"                             [protocol]
                                              rounds = 50
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedshift import files
from fedshift.engines.flower.secagg.identity import Identity
from fedshift.engines.flower.secagg.terms import secure_of
from fedshift.errors import BadData, BadValue, UnknownName
from fedshift.federation import Federation
from fedshift.hparam import check_names, hypers
from fedshift.privacy import Privacy


@dataclasses.dataclass(frozen=True)
class SiteConfig:
    """A site.

    Args:
        name: as the server knows it.
        data: a federation's name, a folder or a file, as for `--data`; or "data.py:function",
            which gives a Federation.
        state: the folder for what the site keeps.
        server: the address of the server, HOST:PORT.
        allow: the kinds of content that may leave (None: all).
        device: where it computes.
        ca: the certificate that the server's is checked with ("": no TLS, on loopback alone).
        key: the site's private key.
        require_secure: what the site uploads must be summed under masks (secure aggregation).
        peers: the folder with the other sites' public keys, SITE.pub, for secure aggregation ("":
            the server is trusted to name them).
        pretrained: its copy of the file of weights that a run may begin with ("": where the server
            has its own).
        heartbeat: whole seconds between signs of life; the server gives a site up after two of
            them, and then lets its key in again.
        home: the folder that the paths are relative to.
    """

    name: str
    data: str
    state: str = "state"
    server: str = "127.0.0.1:8443"
    allow: tuple[str, ...] | None = None
    device: str = "auto"
    ca: str = ""
    key: str = ""
    require_secure: bool = False
    peers: str = ""
    pretrained: str = ""
    heartbeat: int = 30
    home: Path = Path()

    @classmethod
    def read(cls, path: Path) -> SiteConfig:
        """Read a site's file."""
        table = _known(path, files.read_toml(path), cls)
        if not table.get("name") or not table.get("data"):
            raise BadValue(f"{path} has no name or no data: a site needs both")
        allow = table.get("allow")
        if allow is not None and not _words(allow):
            raise BadValue(f"allow in {path} is {allow!r}: give a list of kinds of content")
        table["allow"] = None if allow is None else tuple(allow)
        found = cls(**table, home=path.resolve().parent)
        check_tls(found.server, bool(found.ca), f"server in {path}")
        if not isinstance(found.heartbeat, int) or not 10 <= found.heartbeat <= 1800:
            raise BadValue(
                f"heartbeat in {path} is {found.heartbeat}: give whole seconds, 10 to 1800"
            )
        if found.peers and not found.path(found.peers).is_dir():
            raise BadValue(f"peers in {path} is no folder: put each site's public key there")
        return found

    def path(self, name: str) -> Path:
        """A path of the file."""
        return (self.home / Path(name).expanduser()).resolve()

    @property
    def identity(self) -> Identity:
        """Who the site is to the other sites."""
        return Identity(*(self.path(n) if n else None for n in (self.key, self.peers)))

    def federation(self) -> Federation:
        """The federation that the site's data are in."""
        base, colon, function = self.data.rpartition(":")
        if colon and function.isidentifier() and (base.endswith(".py") or not _exists(self)):
            return _called(self, base, function)
        from fedshift import data
        from fedshift.engines.flower.saved import federation

        base, _, rest = self.data.partition("?")
        here = self.path(base)
        if here.suffix == ".safetensors":
            return federation(here)
        if here.exists():
            return data.load(f"{here}?{rest}" if rest else str(here))
        return data.load(self.data)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A run over sites, as the server is told.

    Args:
        sites: their names, in the order of every sum and table.
        method, set, model, stages, head, protocol, seed, dtype, device: as for a run.
        pretrained: a .safetensors file with the weights that the model begins with, which sites
            have too.
        privacy: fields of `fedshift.Privacy`, where updates are clipped and noised.
        name: what reports call the federation.
        address: HOST:PORT to listen at.
        out: the folder for the run and the server's logs.
        min_sites: a round in which fewer sites take part stops the run.
        seconds: how long a round may take.
        wait: how long to wait for sites to connect, in seconds.
        ca, certificate, key: of TLS ("": none, on loopback alone).
        keys: the folder with each site's public key, SITE.pub.
        secure: the table of secure aggregation (see `secagg.terms`; empty: none).
        home: the folder that the paths are relative to.
    """

    sites: tuple[str, ...]
    method: str
    model: str
    name: str = "sites"
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stages: tuple[str, ...] = ()
    head: str = ""
    pretrained: str = ""
    protocol: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    privacy: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    address: str = "127.0.0.1:8443"
    out: str = "run"
    min_sites: int = 1
    seconds: float = 600.0
    wait: float = 120.0
    ca: str = ""
    certificate: str = ""
    key: str = ""
    keys: str = ""
    secure: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    home: Path = Path()

    @classmethod
    def read(cls, path: Path) -> Deployment:
        """Read a deployment's file."""
        table = _known(path, files.read_toml(path), cls)
        for name in ("sites", "method", "model"):
            if not table.get(name):
                raise BadValue(f"{path} has no {name}: a deployment needs sites, method and model")
        for name in ("sites", "stages"):
            if name in table and not _words(table[name]):
                raise BadValue(f"{name} in {path} is {table[name]!r}: give a list of names")
            table[name] = tuple(table.get(name, ()))
        found = cls(**table, home=path.resolve().parent)
        if not 1 <= found.min_sites <= len(found.sites):
            raise BadValue(
                f"min_sites in {path} is {found.min_sites}: give 1 to {len(found.sites)}, the "
                "number of sites"
            )
        if len({bool(found.ca), bool(found.certificate), bool(found.key), bool(found.keys)}) > 1:
            raise BadValue(
                f"{path} has some of ca, certificate, key and keys: TLS needs all four (see "
                "fedshift certs)"
            )
        check_tls(found.address, bool(found.ca), f"address in {path}")
        secure_of(found.secure, str(path))
        found.full_privacy()
        return found

    def path(self, name: str) -> Path:
        """A path of the file."""
        return (self.home / Path(name).expanduser()).resolve()

    def full_privacy(self) -> Privacy | None:
        """Clipping and noise; a seed that others know protects nobody, so the system's is taken.

        >>> Deployment(("a",), "fedavg", "mlp", privacy={"noise": 2.0}).full_privacy().source
        'system'
        """
        if not self.privacy:
            return None
        check_names(self.privacy, hypers(Privacy), "privacy")
        return Privacy(**{"source": "system", **self.privacy})

    @property
    def folder(self) -> Path:
        """The folder for everything that the server writes."""
        return self.path(self.out)


def check_tls(address: str, tls: bool, where: str) -> None:
    """Refuse an address that is none, and plain connections that leave the machine.

    >>> check_tls("127.0.0.1:8443", False, "server")
    >>> check_tls("fl.example.org:8443", True, "server")
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadValue(f"{where} is '{address}': give HOST:PORT")
    if not tls and not is_loopback(host):
        raise BadValue(
            f"{where} is '{address}', which leaves this machine, without TLS: give ca and keys "
            "(see fedshift certs)"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and nothing else.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _known(path: Path, table: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The entries of a file, by the types of the fields that they fill."""
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name != "home"}
    found = {str(k).replace("-", "_"): v for k, v in table.items()}
    for name, value in found.items():
        if name not in fields:
            raise UnknownName(f"entry in {path}", name, fields)
        if fields[name].default_factory is dict and not isinstance(value, Mapping):
            raise BadValue(
                f"{name} in {path} is {value!r}: write [{name}] and below it name = value"
            )
        default = fields[name].default
        if _kind(default) != _kind(value) or (
            isinstance(default, str) and not isinstance(value, str)
        ):
            raise BadValue(f"{name} in {path} is {value!r}: give {_kind(default)}")
    return found


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, (int, float)) else "text, a list or a table"


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _exists(site: SiteConfig) -> bool:
    return site.path(site.data.partition("?")[0]).exists()


def _called(site: SiteConfig, base: str, function: str) -> Federation:
    """The federation that a function of the user's gives."""
    import importlib

    from fedshift import methods

    if base.endswith(".py"):
        path = site.path(base)
        if not path.is_file():
            raise BadData(f"there is no file {path}: check data in the site's file")
        module = methods.load_file(path)
    else:
        try:
            module = importlib.import_module(base)
        except ImportError as error:
            raise BadData(f"data '{site.data}' cannot be imported: {error}") from error
    make: Callable[[], Any] | None = getattr(module, function, None)
    if not callable(make):
        raise BadData(f"'{base}' has no function '{function}': check data in the site's file")
    found = make()
    if not isinstance(found, Federation):
        raise BadData(f"'{site.data}' gives {type(found).__name__}: it must give a Federation")
    return found
