"""Data of your own: a few arrays per client make a federation.

    python examples/own_data.py
    python examples/own_data.py hospitals.npz      # writes a file instead, and then:
    fedshift run fedavg --data hospitals.npz --rounds 5

Here a table of 569 patients is dealt to three hospitals whose instruments are calibrated
differently. Images work the same: [N, H, W], [N, C, H, W] or [N, H, W, C], as uint8 or floats.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedshift as fs

x, y = load_breast_cancer(return_X_y=True)
x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
CALIBRATION = {"north": (1.0, 0.0), "south": (1.5, 0.5), "west": (0.7, -0.5)}  # gain and offset
hospitals = {
    name: (gain * x[k::3] + offset, y[k::3])
    for k, (name, (gain, offset)) in enumerate(CALIBRATION.items())
}

if __name__ == "__main__":
    if len(sys.argv) > 1:  # a file for the command line
        named = {
            f"{name}/{axis}": a for name, pair in hospitals.items() for axis, a in zip("xy", pair)
        }
        np.savez(sys.argv[1], classes=np.array(["malignant", "benign"]), **named)
    else:
        data = fs.data.arrays(hospitals, name="hospitals", classes=["malignant", "benign"])
        protocol = fs.Protocol(rounds=5, epochs=2, batch=16, lr=0.05, select="best-val")
        print(fs.Run(data, "fedavg", protocol, model="mlp").play().report().table("best-val"))
