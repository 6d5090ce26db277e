"""Who a site is to the other sites: signatures that a server cannot make.

A server that invents sites, or swaps the keys that sites offer, could take the masks off an
upload. Where a site holds the others' public keys, which it got from them and not from the server,
it shares and masks for nobody else.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fedshift.engines.flower.codec import Rejected
from fedshift.errors import BadRun


@dataclasses.dataclass(frozen=True)
class Identity:
    """A site's own key, and the others'.

    Args:
        key: its private key, which its node has, too (None: it signs nothing).
        peers: a folder with the other sites' public keys, SITE.pub (None: it trusts the server to
            name them).
    """

    key: Path | None = None
    peers: Path | None = None

    def signature(self, text: str) -> str:
        """A signature in hexadecimal letters; empty without a key."""
        if self.key is None:
            return ""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = serialization.load_ssh_private_key(_read(self.key), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadRun(f"{self.key} is no key of an elliptic curve: make one with fedshift certs")
        signed: bytes = key.sign(text.encode(), ec.ECDSA(hashes.SHA384()))
        return signed.hex()

    def check(self, name: str, text: str, signature: Any) -> None:
        """Refuse what a site has not signed, where its public key is at hand."""
        if self.peers is None:
            return
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        path = self.peers / f"{name}.pub"
        if "/" in name or not path.is_file():
            raise Rejected(f"it holds no public key of site '{name}' (peers)")
        public = serialization.load_ssh_public_key(_read(path))
        try:
            assert isinstance(public, ec.EllipticCurvePublicKey)
            public.verify(bytes.fromhex(signature), text.encode(), ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, AssertionError, TypeError, ValueError):
            raise Rejected(
                f"site '{name}' has not signed the keys that it is said to offer"
            ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRun(f"{path} cannot be read ({error.strerror}): check the site's file") from None
