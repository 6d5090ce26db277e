"""A network of your own: any torch module, once its stages and its head are named.

    python examples/own_model.py
    fedshift run fedbn --data shifted-digits --model examples/own_model.py:Net --rounds 2
    fedshift run fedbn --data shifted-digits --model examples/own_model.py:Plain \
        --stages conv1,conv2 --head fc --rounds 2

Methods put layers after stages and look at what reaches the head; they never ask for more. `Net`
says itself what its stages and head are; of `Plain`, which knows nothing of fedshift, it is said.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

import fedshift as fs
from fedshift.models import Staged, block


class Net(Staged):
    """Stages run one after another, their output is flattened, the head makes logits of it."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stages = ("conv1", "conv2")
        self.conv1 = self.convolution(shape[0], 8)
        self.conv2 = self.convolution(8, 16)
        self.head = nn.Linear(16 * (shape[1] // 4) * (shape[2] // 4), classes)

    @staticmethod
    def convolution(inputs: int, outputs: int) -> nn.Sequential:
        """What belongs together is one stage."""
        return block(
            conv=nn.Conv2d(inputs, outputs, 3, padding=1),
            norm=nn.BatchNorm2d(outputs),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
        )


class Plain(nn.Module):
    """A network as one finds it elsewhere."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16 * 4 * 4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.norm(self.conv1(x)))
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 4)
        logits: Tensor = self.fc(x.flatten(1))
        return logits


if __name__ == "__main__":
    data = fs.data.load("shifted-digits")
    protocol = fs.Protocol(rounds=2, epochs=1, batch=16, lr=0.1, momentum=0.9)
    plain = fs.ModelSpec.of(Plain, stages=("conv1", "conv2"), head="fc")
    for model in (Net, plain):
        print(fs.Run(data, "fedbn", protocol, model=model).play().report().table())
        print()
