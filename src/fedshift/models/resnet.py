"""ResNet-18 and ResNet-50 (He et al. 2016), with batch or group norm, for large or small images."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedshift.errors import BadModel
from fedshift.models.contract import Staged, block, image
from fedshift.models.norms import norm as norm_of

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet18": ("ResNet-18 with batch norm, as trained on ImageNet (224x224).", {"depth": 18}),
    "resnet18-gn": (
        "ResNet-18 with group norm, as in FedBR (its 7x7 stem also at 32x32).",
        {"depth": 18, "norm": "group"},
    ),
    "resnet18-small": (
        "ResNet-18 with batch norm and a 3x3 stem without pool, for images of 28 to 64 pixels.",
        {"depth": 18, "stem": "small"},
    ),
    "resnet18-small-gn": (
        "As resnet18-small, with group norm.",
        {"depth": 18, "stem": "small", "norm": "group"},
    ),
    "resnet50": ("ResNet-50 with batch norm, as trained on ImageNet (224x224).", {"depth": 50}),
    "resnet50-512": (
        "ResNet-50 with a linear layer to 512 features before the head, as in FedLSI.",
        {"depth": 50, "embedding": 512},
    ),
    "resnet50-gn": ("ResNet-50 with group norm.", {"depth": 50, "norm": "group"}),
}

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
STEMS = ("imagenet", "small")


class Residual(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 (`deep`), added to the input and passed through ReLU.

    The stride is that of the first 3x3 convolution.
    """

    def __init__(
        self, inputs: int, width: int, stride: int, deep: bool, norm: str, groups: int
    ) -> None:
        super().__init__()
        outputs = 4 * width if deep else width
        kernels = (1, 3, 1) if deep else (3, 3)
        sizes = (inputs, width, width, outputs) if deep else (inputs, width, outputs)
        parts: dict[str, nn.Module] = {}
        for i, (kernel, a, b) in enumerate(zip(kernels, sizes, sizes[1:]), 1):
            step = stride if i == kernels.index(3) + 1 else 1
            parts[f"conv{i}"] = nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False)
            parts[f"norm{i}"] = norm_of(norm, b, groups)["norm"]
            parts[f"relu{i}"] = nn.ReLU()
        del parts[f"relu{len(kernels)}"]  # it comes after the sum
        self.body = block(**parts)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = block(conv=conv, **norm_of(norm, outputs, groups))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """What comes out, smaller by the stride."""
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


class ResNet(Staged):
    """A stem, four layers of residual blocks, global average pool.

    torchvision's architecture, initialisation and parameters (11,689,512 and 25,557,032 for 1000
    classes), and files of its weights fit. With the small stem ResNet-18 has 11,173,962 for 10.

    Args:
        depth: 18 or 50.
        norm: "batch", "group" or "layer".
        stem: "imagenet" (7x7, stride 2, max-pooled) or "small" (3x3, stride 1).
        embedding: the width of a linear layer, without ReLU, before the head (0: none).
        groups: of a group norm; 32 as in Wu and He (2018).
        width: channels of the stem; everything else is in proportion.
    """

    published = (
        (r"^conv1\.", "stem.conv."),
        (r"^bn1\.", "stem.norm."),
        (r"^(layer\d\.\d+)\.conv(\d)\.", r"\1.body.conv\2."),
        (r"^(layer\d\.\d+)\.bn(\d)\.", r"\1.body.norm\2."),
        (r"\.downsample\.0\.", ".shortcut.conv."),
        (r"\.downsample\.1\.", ".shortcut.norm."),
        (r"^fc\.", "head."),
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        depth: int = 18,
        norm: str = "batch",
        stem: str = "imagenet",
        embedding: int = 0,
        groups: int = 32,
        width: int = 64,
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, f"resnet{depth}", least=32 if stem == "imagenet" else 8)
        if depth not in BLOCKS or norm == "none" or stem not in STEMS:
            raise BadModel(
                f"resnet has no depth {depth} with norm '{norm}' and stem '{stem}': depths are 18 "
                f"and 50, norms batch, group and layer, stems {' and '.join(STEMS)}"
            )
        self.stages = ("stem", "layer1", "layer2", "layer3", "layer4")
        large = stem == "imagenet"
        kernel, stride = (7, 2) if large else (3, 1)
        conv = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
        # Pooling commutes with ReLU, which has less to do behind it.
        pools = {"pool": nn.MaxPool2d(3, 2, 1)} if large else {}
        self.stem = block(conv=conv, **norm_of(norm, width, groups), **pools, relu=nn.ReLU())
        inputs, deep = width, depth >= 50
        for layer, count in enumerate(BLOCKS[depth], 1):
            blocks = []
            for i in range(count):
                stride = 2 if layer > 1 and i == 0 else 1
                blocks.append(Residual(inputs, width, stride, deep, norm, groups))
                inputs = 4 * width if deep else width
            self.add_module(f"layer{layer}", nn.Sequential(*blocks))
            width *= 2
        self.embedding = nn.Linear(inputs, embedding) if embedding else nn.Identity()
        self.fresh = ("embedding", "head") if embedding else ("head",)
        self.head = nn.Linear(embedding or inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def join(self, x: Tensor) -> Tensor:
        """Global average pooling, as a mean: adaptive pooling does not compile under vmap."""
        z: Tensor = self.embedding(x.mean((2, 3)))
        return z


def network(shape: tuple[int, ...], classes: int, **options: Any) -> ResNet:
    """The network for images of a shape; `options` are those of `ResNet`.

    >>> network((3, 32, 32), 10, stem="small").stages
    ('stem', 'layer1', 'layer2', 'layer3', 'layer4')
    """
    return ResNet(shape, classes, **options)
