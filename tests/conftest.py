"""One thread of torch per test process: small networks lose by more, most of all on busy machines."""

import torch

torch.set_num_threads(1)
