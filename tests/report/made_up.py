"""Run folders with made-up scores, as a run would write them."""

import math

from fedshift.files import append_lines, write_toml
from fedshift.report.read import record

CLIENTS = ("clinic", "street", "night", "sketch")


def config(method="fedavg", seed=0, rounds=12, view="global", **more):
    return {
        "method": method,
        "data": "shifted-digits",
        "model": "digits-cnn",
        "engine": "loop",
        "seed": seed,
        "metric": "accuracy",
        "view": view,
        "protocol": {"rounds": rounds, "epochs": 1, "batch": 32, "lr": 0.01, "select": "last"},
        "versions": {"fedshift": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        **more,
    }


def lines(seed=0, level=0.8, rounds=12, personal=False, unseen=False):
    for r in range(1, rounds + 1):
        tests = []
        for k, client in enumerate(CLIENTS):
            wobble = 0.02 * math.sin(3.0 * r + 2.0 * k + 5.0 * seed)
            test = (level - 0.04 * k) * (1 - math.exp(-r / 3)) + wobble
            tests.append(test)
            last = unseen and k == len(CLIENTS) - 1
            yield {
                "stage": "train",
                "round": r,
                "client": client,
                "role": "unseen" if last else "seen",
                "test": test,
                "val": test - 0.01 * math.cos(r),
                "personal_test": test + 0.03 if personal else None,
                "personal_val": test + 0.02 if personal else None,
            }
        yield {
            "stage": "train",
            "round": r,
            "client": None,
            "mean": sum(tests) / len(tests),
            "loss": {"ce": 2.0 * math.exp(-r / 4), "mixup": 1.0 * math.exp(-r / 5)},
            "bytes_up": 2_400_000 * (2 if personal else 1),
            "bytes_down": 2_400_000,
            "seconds": 0.7 + 0.1 * seed,
            "participants": list(CLIENTS),
            "left_out": {},
        }


def run(method="fedavg", seed=0, **how):
    return record(config(method, seed), lines(seed, **how), f"runs/{method}-{seed}")


def write(folder, method="fedavg", seed=0, **how):
    write_toml(folder / "config.toml", config(method, seed))
    append_lines(folder / "metrics.jsonl", lines(seed, **how))
    return folder
