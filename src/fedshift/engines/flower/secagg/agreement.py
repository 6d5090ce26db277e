"""The primitives on keys: agreement (X25519, HKDF), sealing (AES-GCM) and sharing (Shamir).

All come from the packages `cryptography` and `pycryptodome`, which Flower brings. Every key that is
derived says in its derivation what it is for, in which exchange of which run, and between whom.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fedshift.engines.flower.codec import Rejected

SIZE = 32  # bytes of keys and seeds
_HALF = 16  # what Shamir's scheme shares at a time: elements of GF(2^128)
_NONCE = 12


def pair() -> tuple[bytes, bytes]:
    """A private key and its public key."""
    secret = os.urandom(SIZE)
    return secret, public(secret)


def public(secret: bytes) -> bytes:
    """The public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    found: bytes = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return found


def agreed(secret: bytes, other: bytes, purpose: str) -> bytes:
    """The key that two agree on, for one purpose.

    >>> (a, a_public), (b, b_public) = pair(), pair()
    >>> agreed(a, b_public, "masks") == agreed(b, a_public, "masks")
    True
    >>> agreed(a, b_public, "masks") == agreed(a, b_public, "shares")
    False
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        key = X25519PrivateKey.from_private_bytes(secret)
        common = key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise Rejected("a public key is none") from None
    found: bytes = HKDF(hashes.SHA256(), SIZE, salt=None, info=purpose.encode()).derive(common)
    return found


def seal(key: bytes, text: bytes, about: str) -> bytes:
    """A text that nobody without the key can read or change.

    >>> seal(bytes(32), b"abc", "x") == seal(bytes(32), b"abc", "x")
    False
    >>> unseal(bytes(32), seal(bytes(32), b"abc", "x"), "x")
    b'abc'
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE)
    closed: bytes = AESGCM(key).encrypt(nonce, text, about.encode())
    return nonce + closed


def unseal(key: bytes, closed: bytes, about: str) -> bytes:
    """The text that was sealed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        text: bytes = AESGCM(key).decrypt(closed[:_NONCE], closed[_NONCE:], about.encode())
    except (InvalidTag, ValueError):
        raise Rejected("what was sealed has been changed") from None
    return text


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """Shares of a secret, of which so many at least give it back; share k is of index k + 1.

    >>> shares = split(bytes(range(32)), 2, 3)
    >>> join({1: shares[0], 3: shares[2]}, 2) == join({2: shares[1], 3: shares[2]}, 2)
    True
    """
    from Crypto.Protocol.SecretSharing import Shamir

    halves = [Shamir.split(least, count, secret[at : at + _HALF], False) for at in (0, _HALF)]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def join(shares: Mapping[int, bytes], least: int) -> bytes:
    """The secret of shares by their indices; more than the least are passed over.

    >>> join({3: split(b"x" * 32, 1, 3)[2]}, 1)
    b'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'
    """
    from Crypto.Protocol.SecretSharing import Shamir

    some = sorted(shares.items())[:least]
    first = Shamir.combine([(k, s[:_HALF]) for k, s in some], False)
    second = Shamir.combine([(k, s[_HALF:]) for k, s in some], False)
    return bytes(first + second)
