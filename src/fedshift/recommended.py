"""What a federation recommends to those who choose no protocol and no model."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedshift.federation import Federation
from fedshift.protocol import Protocol


def recommended_protocol(federation: Federation) -> Protocol:
    """The protocol that a federation recommends.

    >>> from fedshift.data import load
    >>> recommended_protocol(load("shifted-digits")).rounds >= 6
    True
    """
    known = {f.name for f in dataclasses.fields(Protocol)}
    return Protocol(**{n: v for n, v in federation.recommended.items() if n in known})


def recommended_model(federation: Federation) -> Any:
    """The model that a federation recommends, or one that fits most data of its task.

    >>> from fedshift.data import load
    >>> recommended_model(load("shifted-digits"))
    'small-cnn'
    """
    plain = {"classification": "mlp", "segmentation": "unet-small"}
    return federation.recommended.get("model", plain[federation.task])
