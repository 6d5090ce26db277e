"""The embedded federation: balanced, disjoint, repeatable, shifted, and learnable."""

import torch

from fedshift import data
from fedshift.protocol import Protocol

FED = data.shifted_digits()


def test_sites_have_the_same_mix_and_sizes():
    assert FED.names == ("scanner", "camera", "blackboard", "archive", "fax")
    total = 0
    for client in FED.clients:
        labels = torch.cat([client.train.y, client.val.y, client.test.y])
        counts = torch.bincount(labels, minlength=10)
        assert int(counts.min()) >= 34 and int(counts.max()) <= 37  # 174 to 183 of each, by five
        assert (len(client.train), len(client.val)) in {(58, 50), (57, 51)}
        assert client.train.x.dtype == torch.uint8
        assert client.train.x.shape[1:] == (1, 16, 16)
        total += len(labels)
    assert total == 1797


def test_the_seed_decides():
    again, other = data.shifted_digits(), data.shifted_digits(seed=1)
    for name in FED.names:
        assert torch.equal(FED[name].train.x, again[name].train.x)
        assert not torch.equal(FED[name].train.y, other[name].train.y)


def test_sites_differ_in_brightness_and_contrast():
    mean = {c.name: float(c.train.x.double().mean()) / 255 for c in FED.clients}
    spread = {c.name: float(c.train.x.double().std()) / 255 for c in FED.clients}
    assert mean["blackboard"] < 0.5 < mean["scanner"]
    assert spread["archive"] < 0.75 * spread["scanner"] < spread["fax"]


def test_recommended_fits_the_protocol():
    fields = dict(FED.recommended)
    assert fields.pop("model") == "small-cnn"
    assert Protocol(**fields).rounds == 24


def test_each_site_can_be_learnt_and_does_not_carry_over():
    from sklearn.linear_model import LogisticRegression

    def flat(samples):
        return samples.x.flatten(1).numpy() / 255.0, samples.y.numpy()

    scanner = LogisticRegression(max_iter=200).fit(*flat(FED["scanner"].train))
    assert scanner.score(*flat(FED["scanner"].test)) > 0.85
    assert scanner.score(*flat(FED["blackboard"].test)) < 0.3
