"""The rows of the table, and one run of one of them."""

from __future__ import annotations

import time
from typing import Any

import torch

import fedshift as fs
from fedshift import methods
from fedshift.hparam import hypers
from fedshift.recommended import recommended_protocol

DATA = "shifted-digits"
Scores = dict[str, Any]
# FedLSI's defaults are sizes for a GPU (10,000 steps at the server); these are for a CPU.
QUICK = {
    f"fedlsi.{n}": h.quick for n, h in hypers(fs.methods.FedLSI).items() if h.quick is not None
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "Local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "FedProx": ("fedprox", {}),
    "FedBN": ("fedbn", {}),
    "FedFA-R": ("fedfa", {"fedfa.variance": "random"}),
    "FedFA-C": ("fedfa", {"fedfa.variance": "client"}),
    "FedFA": ("fedfa", {}),
    "FedFA+": ("fedfa-plus", {}),
    "FRAug": ("fraug", {}),
    "FedGenP": ("fedgenp", {}),
    "FedGenP (unit weights)": ("fedgenp", {"fedgenp.paper_loss": True}),
    "FedBR": ("fedbr", {}),
    "FedLSI (quick sizes)": ("fedlsi", QUICK),
}


def score(row: str, seed: int, left_out: str) -> Scores:
    """Play one run and give each site's scores of the last round."""
    torch.set_num_threads(1)
    name, settings = ROWS[row]
    data = fs.data.load(DATA)
    protocol = recommended_protocol(data)
    began = time.perf_counter()
    run = fs.Run(
        data,
        methods.make(name, settings),
        protocol.replace(eval_every=protocol.rounds),
        seed=seed,
        engine="loop",
        workers=1,
        device="cpu",
        hold_out=[left_out] if left_out else (),
        warn=lambda message: None,
    ).play()
    last = [line for line in run.lines if line["client"] and line["round"] == protocol.rounds]
    fields = ("role", "test", "personal_test")
    return {
        "sites": {line["client"]: {f: line[f] for f in fields} for line in last},
        "seconds": time.perf_counter() - began,
    }
