"""Any number of sites: the embedded digits of one client, under other names."""

from __future__ import annotations

import dataclasses

import fedshift as fs


def federation() -> fs.Federation:
    """Thirty clients, s00 to s29, with the same samples."""
    whole = fs.data.load("shifted-digits")
    like = whole.clients[0]
    clients = tuple(dataclasses.replace(like, name=f"s{k:02d}") for k in range(30))
    return dataclasses.replace(whole, clients=clients, scored=(), source="")
