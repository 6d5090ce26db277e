"""One thread of torch per test process: small networks lose by more, on busy machines most."""

import torch

torch.set_num_threads(1)
