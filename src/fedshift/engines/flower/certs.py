"""Keys and certificates of a deployment: a CA, the server's certificate, a key pair for each site.

What is secret is readable for its owner alone. The CA's key signs the server's certificate once and
is best kept elsewhere afterwards; sites need `ca.crt` and their own key, the server the rest.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedshift import files
from fedshift.errors import BadRun, BadValue


def make(folder: Path, sites: Sequence[str], hosts: Sequence[str], days: int = 825) -> list[Path]:
    """Make what is not there yet: a CA, a certificate for the server's hosts, keys for sites.

    What a folder has stays: further sites can be added later, with the same CA.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    for site in sites:
        if not site or "/" in site or site[0] == ".":
            raise BadValue(f"site name '{site}' cannot be a file name: choose another")
    if not hosts:
        raise BadValue("no host was given: name the server's, as sites reach it (--host)")
    pem, raw = serialization.Encoding.PEM, serialization.NoEncryption()
    made: list[Path] = []

    def write(name: str, data: bytes, secret: bool) -> None:
        with owner_only(secret):
            files.write_bytes(folder / name, data)
        made.append(folder / name)

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        data: bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, raw)
        return data

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name, NameOID.COMMON_NAME))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    if not (folder / "ca.crt").exists():
        key = ec.generate_private_key(ec.SECP384R1())
        name = _name("fedshift CA", NameOID.COMMON_NAME)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        ca = (
            certificate("fedshift CA", key, name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA384())
        )
        write("ca.key", private(key), secret=True)
        write("ca.crt", ca.public_bytes(pem), secret=False)
    if not (folder / "server.crt").exists():
        if not (folder / "ca.key").exists():
            raise BadRun(f"{folder} has no ca.key to sign with: bring it back, or start anew")
        ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = ec.generate_private_key(ec.SECP384R1())
        server = (
            certificate(hosts[0], key, issuer.subject)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
            )
            .sign(ca_key, hashes.SHA384())
        )
        write("server.key", private(key), secret=True)
        write("server.crt", server.public_bytes(pem), secret=False)
    return made + [p for site in sites for p in pair(folder / f"{site}.key")]


def pair(path: Path) -> list[Path]:
    """Make a site's key and the public one beside it (.pub), where they are not there yet."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        return []
    key = ec.generate_private_key(ec.SECP384R1())
    form, public_form = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, public_form)
    with owner_only():
        files.write_bytes(path, secret)
    files.write_bytes(path.with_suffix(".pub"), public + b"\n")
    return [path, path.with_suffix(".pub")]


def _name(text: str, oid: object) -> object:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(oid, text)])  # type: ignore[arg-type]


def _host(text: str) -> object:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


@contextlib.contextmanager
def owner_only(secret: bool = True) -> Iterator[None]:
    """Files that are written in this block are for their owner alone, or for all to read."""
    before = os.umask(0o077 if secret else 0o022)
    try:
        yield
    finally:
        os.umask(before)
