"""The U-Net: what its stages are, what goes across untouched, and sides that do not halve."""

import pytest
import torch

from fedshift import models
from fedshift.errors import BadModel
from fedshift.methods import FedFA
from fedshift.models.unet import UNet
from fedshift.net import insert_after, measure

STAGES = ("pool1", "pool2", "pool3", "pool4", "bottleneck")


def test_stages_are_the_pools_and_the_bottleneck():
    """As many channels as FedFA has layers for: four encoder levels and the bottleneck."""
    with torch.device("meta"):
        net = UNet((3, 384, 384), 2)
    width, shapes = measure(net, (3, 384, 384))
    assert width == 32 and net.head.kernel_size == (1, 1)
    assert shapes == {
        "pool1": (32, 192, 192),
        "pool2": (64, 96, 96),
        "pool3": (128, 48, 48),
        "pool4": (256, 24, 24),
        "bottleneck": (512, 24, 24),
    }


def test_fedfa_has_a_layer_behind_each_and_none_on_the_way_up():
    import fedshift as fs
    from tests.toys import patches, toy_unet

    run = fs.Run(patches(), FedFA(), model=toy_unet, device="cpu", warn=lambda message: None)
    layers = [n for n, _ in run.plan.model.named_children() if n.startswith("fedfa_")]
    assert layers == ["fedfa_pool1", "fedfa_pool2", "fedfa_bottleneck"]


@pytest.mark.parametrize("stage", ["pool1", "bottleneck"])
def test_what_is_put_behind_a_stage_does_not_touch_what_goes_across(stage):
    net = UNet((1, 16, 16), 2, width=4, levels=2).eval()
    x = torch.rand(2, 1, 16, 16)
    seen = []
    net.encoder1.register_forward_hook(lambda m, i, o: seen.append(o))
    net.decoder1.register_forward_pre_hook(lambda m, i: seen.append(i[0]))
    before = net(x)

    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    insert_after(net, stage, "twice", Twice())
    after = net(x)
    assert not torch.allclose(before, after)
    for across, joined in (seen[:2], seen[2:]):
        assert torch.equal(joined[:, 4:], across)
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[1][:, :4], seen[3][:, :4])


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 31), (2, 47, 16)])
def test_every_pixel_gets_logits_at_any_size(shape):
    net = UNet(shape, 3, width=2)
    assert models.check(net, shape, 3, task="segmentation") == 2
    assert net(torch.zeros(2, *shape)).shape == (2, 3, *shape[1:])
    with pytest.raises(BadModel, match="'unet' needs images of at least 16x16"):
        UNet((1, 15, 64), 2)


def test_where_sides_halve_the_names_and_sizes_are_those_of_plain_layers():
    net = UNet((1, 32, 32), 2, width=4, levels=1)
    x = torch.rand(2, 1, 32, 32)
    net.eval()
    kept = net.encoder1(x)
    low = net.bottleneck(torch.nn.functional.max_pool2d(kept, 2))
    by_hand = net.head(net.decoder1(torch.cat([net.up1(low), kept], 1)))
    assert torch.equal(net(x), by_hand)
