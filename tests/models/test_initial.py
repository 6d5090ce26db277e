"""Weights from files: names and shapes are compared, the head is free, nothing else is read."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedshift as fs
from fedshift import models
from fedshift.errors import BadModel
from fedshift.models import ModelSpec, initial
from fedshift.models.registry import construct
from fedshift.run import Run
from tests.toys import federation

SMALL = {"width": 4, "groups": 2}
SHAPE = (1, 32, 32)


def resnet(classes=3, depth="resnet18", **options) -> nn.Module:
    return construct(depth, SHAPE, classes, {**SMALL, **options})


def torchvision_names(model: nn.Module) -> dict[str, torch.Tensor]:
    """A ResNet's tensors as torchvision calls them."""
    renamed = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in (
            ("stem.conv", "conv1"),
            ("stem.norm", "bn1"),
            (".body.conv", ".conv"),
            (".body.norm", ".bn"),
            ("shortcut.conv", "downsample.0"),
            ("shortcut.norm", "downsample.1"),
            ("head.", "fc."),
        ):
            name = name.replace(ours, theirs)
        renamed[name] = tensor.contiguous()
    return renamed


@pytest.fixture
def file(tmp_path):
    """Weights of a ResNet-18 with 5 classes, in a file as torchvision's would be."""
    path = tmp_path / "r18.safetensors"
    save_file(torchvision_names(resnet(5)), path)
    return path


def test_a_file_of_torchvisions_names_fills_all_but_the_head(file):
    from safetensors.torch import load_file

    model = models.build("resnet18", SHAPE, 3, key=0, kwargs=SMALL, pretrained=file)
    drawn = models.build("resnet18", SHAPE, 3, key=0, kwargs=SMALL)
    theirs = load_file(file)
    assert set(torchvision_names(model)) == set(theirs)
    for name, tensor in torchvision_names(model).items():
        assert name.startswith("fc.") or torch.equal(tensor, theirs[name]), name
    assert torch.equal(model.head.weight, drawn.head.weight)
    assert not torch.equal(model.stem.conv.weight, drawn.stem.conv.weight)


def test_a_head_of_the_same_shape_is_filled_too(file):
    from safetensors.torch import load_file

    model = models.build("resnet18", SHAPE, 5, key=0, kwargs=SMALL, pretrained=file)
    assert torch.equal(model.head.weight, load_file(file)["fc.weight"])


def test_new_layers_stay_as_drawn(tmp_path):
    path = tmp_path / "r50.safetensors"
    save_file(torchvision_names(resnet(depth="resnet50")), path)
    a, b = (
        models.build("resnet50-512", SHAPE, 3, key=0, kwargs=SMALL, pretrained=p)
        for p in (path, "")
    )
    assert torch.equal(a.embedding.weight, b.embedding.weight)
    assert not torch.equal(a.stem.conv.weight, b.stem.conv.weight)


PUBLISHED = {  # network, shape: some names of torchvision's files, and the tensors they fill here
    "swin-t": {
        "features.0.0.weight": "stage1.first.conv.weight",
        "features.0.2.bias": "stage1.first.norm.bias",
        "features.1.1.attn.relative_position_bias_table": "stage1.blocks.1.attn.table",
        "features.2.reduction.weight": "stage2.first.reduction.weight",
        "features.5.5.mlp.3.bias": "stage3.blocks.5.mlp.linear2.bias",
        "features.6.norm.weight": "stage4.first.norm.weight",
        "features.7.1.attn.qkv.weight": "stage4.blocks.1.attn.qkv.weight",
        "norm.weight": "norm.weight",
    },
    "vgg11": {"features.0.weight": "conv1.conv.weight", "features.18.bias": "conv8.conv.bias"},
    "alexnet": {
        "features.10.weight": "conv5.conv.weight",
        "classifier.4.weight": "fc2.linear.weight",
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_of_published_files(name):
    with torch.device("meta"):
        model = construct(name, (3, 64, 64), 10)
    own = {n: torch.tensor(k) for k, n in enumerate(model.state_dict())}
    for theirs, ours in PUBLISHED[name].items():
        assert ours in own
        assert list(initial._renamed(model, {theirs: torch.zeros(1)})) == [ours]
    left_out = {"swin-t": "features.1.0.attn.relative_position_index", "vgg11": "classifier.0.bias"}
    if name in left_out:
        assert initial._renamed(model, {left_out[name]: torch.zeros(1)}) == {}


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "alexnet", "vgg11", "swin-t"])
def test_outputs_are_torchvisions(name, tmp_path):
    """Where torchvision is installed: its weights, read from a file, give its features."""
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.get_model(name.replace("-", "_")).eval()
    path, shape = tmp_path / "theirs.safetensors", (3, 96, 128)
    save_file({n: t.contiguous() for n, t in theirs.state_dict().items()}, path)
    ours = models.build(name, shape, 1000, key=0, pretrained=path).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        if name == "vgg11":  # FedBR's ends in the mean of the maps
            torch.testing.assert_close(ours.features(x), theirs.features(x).mean((2, 3)))
        else:
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


def wrong(path, change):
    tensors = torchvision_names(resnet(5))
    change(tensors)
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("bn1.bias"), r"lack what the model has: stem.norm.bias"),
        (lambda t: t.update(odd=torch.ones(1)), "hold what the model has not: odd"),
        (
            lambda t: t.update({"conv1.weight": torch.ones(4, 3, 7, 7)}),
            r"stem.conv.weight \(4x3x7x7 in the file, 4x1x7x7 here\)",
        ),
        (lambda t: t["bn1.bias"].fill_(torch.nan), "NaN or infinite values in stem.norm.bias"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, message):
    path = wrong(tmp_path / "wrong.safetensors", change)
    with pytest.raises(BadModel, match=message) as caught:
        models.build("resnet18", SHAPE, 3, key=0, kwargs=SMALL, pretrained=path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_counts_of_batches_may_be_missing_and_half_precision_is_read(tmp_path):
    tensors = {
        n: t.half() if t.is_floating_point() else t
        for n, t in torchvision_names(resnet(5)).items()
        if not n.endswith("num_batches_tracked")
    }
    path = tmp_path / "half.safetensors"
    save_file(tensors, path)
    model = models.build("resnet18", SHAPE, 3, key=0, kwargs=SMALL, pretrained=path)
    assert model.stem.conv.weight.dtype == torch.float32


def test_other_files_are_refused_with_the_remedy(tmp_path):
    pth = tmp_path / "r18.pth"
    torch.save(resnet().state_dict(), pth)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no tensors at all")
    for path, message in (
        (pth, r"can run code when opened: convert them .*save_file\(state_dict, 'r18.safetensors'"),
        (broken, "cannot be read"),
        (tmp_path / "none.safetensors", "do not exist"),
    ):
        with pytest.raises(BadModel, match=message):
            models.build("resnet18", SHAPE, 3, key=0, kwargs=SMALL, pretrained=path)


def test_foreign_modules_have_their_own_names(tmp_path):
    def net(classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, classes))

    path = tmp_path / "net.safetensors"
    theirs = net(7).state_dict()
    save_file(theirs, path)
    model = models.build(net, (1, 4, 4), 3, key=0, head="3", pretrained=path)
    assert torch.equal(model.body[1].weight, theirs["1.weight"])
    assert model.head.weight.shape == (3, 4)


def test_a_description_has_the_digest_of_the_file(file):
    """A site opens no file for a server that does not know its content."""
    plain = ModelSpec("resnet18", kwargs=SMALL, pretrained=str(file)).to_dict()
    assert ModelSpec.from_dict(plain).build(SHAPE, 3, key=0).stages[0] == "stem"
    with pytest.raises(BadModel, match="are not those that the run began with"):
        ModelSpec.from_dict({**plain, "digest": "0" * 32}).build(SHAPE, 3, key=0)
    with pytest.raises(BadModel, match="without their digest"):
        ModelSpec.from_dict({**plain, "digest": ""})


def test_a_run_goes_on_and_predicts_with_the_same_file_alone(tmp_path, file):
    spec = ModelSpec("resnet18", kwargs=SMALL, pretrained=str(file))
    fed = federation((8, 8), SHAPE)
    protocol = fs.Protocol(rounds=1, steps=1, batch=4, lr=0.01)
    Run(fed, "fedavg", protocol, spec, out=tmp_path / "run", workers=1).play()
    again = Run.resume(tmp_path / "run", fed)
    assert again.spec.pretrained == str(file) and again.spec.digest == initial.digest(str(file))
    save_file(torchvision_names(resnet(5)), file)
    with pytest.raises(BadModel, match="are not those that the run began with"):
        Run.resume(tmp_path / "run", fed)
    file.unlink()
    trained = fs.load(tmp_path / "run", device="cpu")  # needs what was learnt, no more
    assert trained.predict(fed.clients[0].test.x.float()).shape == (9, 3)
