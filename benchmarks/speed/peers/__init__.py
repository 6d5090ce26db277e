"""The same work in other people's simulators, and in ours: one module each, with `play`.

`play(work, device, turns)` gets ready, then trains a round for every turn until it is told to stop.
A peer is in its own process and only where it can be imported; its figures are the best that its
users get without changing it: data are tensors on the device already, and nothing is evaluated.
"""
