"""Keyed draws: every function, alone and mapped, and the laws they must follow."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state

from fedshift import keys
from fedshift.draws import keyed, uses_randomness
from fedshift.errors import BadModel, BadValue

KEYS = torch.tensor([keys.fold(0, k) for k in range(3)])
X = torch.randn(3, 4, 6, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout inplace": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout p=1": lambda x: F.dropout(x, 1.0),
    "dropout1d": lambda x: F.dropout1d(x[..., 0], 0.3),
    "dropout1d unbatched": lambda x: F.dropout1d(x[0, :, :, 0], 0.3),
    "dropout2d": lambda x: F.dropout2d(x, 0.3),
    "dropout3d": lambda x: F.dropout3d(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.clone(), 0.3, True, True),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "torch.feature_dropout": lambda x: torch.feature_dropout(x, 0.3, True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3, is_causal=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "rand": lambda x: x * torch.rand(4, 6, 5, 5, dtype=x.dtype),
    "rand size": lambda x: x[0, 0] + torch.rand(x.shape[-2:], dtype=torch.float64),
    "rand_like": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn((5,)) + x,
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float32),
    "normal": lambda x: torch.normal(x, x.abs()) + torch.normal(2.0, 0.1, (5,)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + x.bernoulli(0.3),
    "bernoulli_": lambda x: torch.empty(6, 5, 5).bernoulli_(0.3) * x,
    "uniform_": lambda x: x.new_empty(5).uniform_(-1, 1) + torch.empty_like(x).uniform_(to=2.0),
    "normal_": lambda x: nn.init.normal_(torch.empty(5), std=0.5) + x.clone().normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "randint": lambda x: torch.randint(7, (5,)) + torch.randint(low=-3, high=9, size=(5,)),
    "randint_like": lambda x: torch.randint_like(x, 2, 7),
    "randperm": lambda x: x[:, torch.randperm(6)],
    "multinomial": lambda x: torch.multinomial(x[0, 0].sigmoid(), 3),
    "distributions": lambda x: torch.distributions.Normal(x, 1.0).rsample(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_equal_the_loop_and_no_generator_moves(name):
    def draw(key, x):
        with keyed(key):
            return FUNCTIONS[name](x)

    before = torch.get_rng_state()
    alone = torch.stack([draw(k, x) for k, x in zip(KEYS, X)])
    mapped = torch.vmap(draw)(KEYS, X)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(mapped, alone)
    assert torch.equal(draw(KEYS[0], X[0]), alone[0])
    if name != "dropout p=1":
        assert not torch.equal(draw(KEYS[0], X[0]), draw(KEYS[1], X[0]))


class Mixed(nn.Module):
    """Norm layers that move buffers, dropout, and attention that drops, in one network."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.instance = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.dropout = nn.Dropout2d(0.3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.layer = nn.LayerNorm(8)
        self.norm1 = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        # Instance norm comes first: torch 2.13's backward of it on a CPU, without vmap, is wrong
        # for a gradient of permuted strides, such as attention gives.
        x = self.dropout(self.norm(self.group(self.instance(self.conv(x)))))
        x = x.flatten(2).transpose(1, 2)
        weighted = self.attention(x, x, x)[0]  # asks for the weights: its own dropout
        fused = self.attention(x, x, x, need_weights=False)[0]  # scaled_dot_product_attention
        x = self.layer(self.encoder(weighted + fused)).mean(1)
        return self.head(F.dropout(self.norm1(x), 0.5, self.training))


def test_stacked_networks_equal_the_loop():
    torch.manual_seed(0)
    nets = [Mixed().double() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x, base = torch.randn(3, 6, 2, 5, 5, dtype=torch.float64), copy.deepcopy(nets[0])

    def loss(p, b, x, key):
        with keyed(key):
            return functional_call(base, (p, b), (x,)).square().mean()

    stacked = torch.vmap(loss)(params, buffers, x, KEYS)
    inside = torch.vmap(torch.func.grad(loss))(
        params, {n: b.clone() for n, b in buffers.items()}, x, KEYS
    )
    outside = dict(zip(params, torch.autograd.grad(stacked.sum(), list(params.values()))))
    for k, net in enumerate(nets):
        with keyed(KEYS[k]):
            alone = net(x[k]).square().mean()
        alone.backward()
        torch.testing.assert_close(stacked[k], alone, rtol=0, atol=1e-12)
        for name, p in net.named_parameters():
            torch.testing.assert_close(outside[name][k], p.grad, rtol=0, atol=1e-12)
            torch.testing.assert_close(inside[name][k], p.grad, rtol=0, atol=1e-12)
        for name, b in net.named_buffers():
            torch.testing.assert_close(buffers[name][k], b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("drop", "whole"),
    [
        (nn.Dropout(0.3), ()),
        (nn.Dropout1d(0.3), (2,)),
        (nn.Dropout2d(0.3), (2, 3)),
        (nn.Dropout3d(0.3), (2, 3, 4)),
    ],
)
def test_dropout_drops_the_share_in_whole_channels(drop, whole):
    x = torch.ones(2000, 10, *[2] * max(1, len(whole)))
    with keyed(KEYS[0]):
        y = drop(x)
    torch.testing.assert_close(y.unique(), torch.tensor([0.0, 1 / 0.7]))
    share = (y == 0).float().mean().item()
    units = y.numel() / 2 ** len(whole)
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / units)
    if whole:
        assert torch.equal(y.amax(whole), y.amin(whole))


def test_alpha_dropout_keeps_mean_and_variance_and_values_of_torch():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    with keyed(KEYS[0]):
        y = F.alpha_dropout(x, 0.3, True)
    assert abs(y.mean().item()) < 0.02 and abs(y.var().item() - 1) < 0.02
    ones = torch.ones(1000)
    with keyed(KEYS[0]):
        ours = F.alpha_dropout(ones, 0.3, True).unique()
    torch.testing.assert_close(ours, F.alpha_dropout(ones, 0.3, True).unique())


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "gqa", "blind", "scale"])
def test_written_out_attention_is_torchs(kind):
    # dropout so rare that nothing drops: what is left must be the fused kernel's result
    q, rare = torch.randn(2, 4, 5, 8, dtype=torch.float64), 1e-12
    k = torch.randn(2, 2 if kind == "gqa" else 4, 7, 8, dtype=torch.float64)
    mask = torch.rand(5, 7) > 0.3
    if kind == "blind":
        mask[2] = False
    options = {
        "causal": {"is_causal": True},
        "bool": {"attn_mask": mask},
        "blind": {"attn_mask": mask},
        "float": {"attn_mask": torch.randn(5, 7, dtype=torch.float64)},
        "gqa": {"enable_gqa": True},
        "scale": {"scale": 0.2},
    }.get(kind, {})
    with keyed(KEYS[0]):
        ours = F.scaled_dot_product_attention(q, k, k, dropout_p=rare, **options)
    theirs = F.scaled_dot_product_attention(q, k, k, **options)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_sites_differ_and_restart_on_entering():
    mode, x = keyed(KEYS[0]), torch.ones(50)
    with mode:
        a, b = F.dropout(x), F.dropout(x)
    with mode:
        again = F.dropout(x)
    assert not torch.equal(a, b) and torch.equal(a, again)


def test_masks_agree_over_types():
    with keyed(KEYS[0]):
        wide = F.dropout(torch.ones(10_000, dtype=torch.float64), 0.3)
    for dtype in (torch.float32, torch.bfloat16):
        with keyed(KEYS[0]):
            assert torch.equal(F.dropout(torch.ones(10_000, dtype=dtype), 0.3) > 0, wide > 0)


def test_multinomial_follows_its_law():
    p = torch.tensor([0.1, 0.0, 0.6, 0.3])
    with keyed(KEYS[0]):
        many = torch.multinomial(p, 20_000, replacement=True)
        three = torch.multinomial(p, 3)
    share = torch.bincount(many, minlength=4) / 20_000
    torch.testing.assert_close(share, p, rtol=0, atol=0.02)
    assert sorted(three.tolist()) == [0, 2, 3]


def test_eval_mode_and_zero_draw_nothing():
    x = torch.randn(4, 4)
    mode, attention = keyed(KEYS[0]), nn.MultiheadAttention(4, 2, dropout=0.5).eval()
    with mode:
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        F.rrelu(x)
        attention(x, x, x)
    assert mode.drawn == set()


def test_what_cannot_be_keyed_is_refused():
    with keyed(KEYS[0]):
        with pytest.raises(BadModel, match=r"torch.poisson cannot draw from a key: build"):
            torch.poisson(torch.ones(3))
        with pytest.raises(BadModel, match="fractional_max_pool2d cannot draw"):
            nn.FractionalMaxPool2d(2, output_size=2)(torch.ones(1, 1, 5, 5))
        with pytest.raises(BadModel, match="out="):
            torch.rand(3, out=torch.empty(3))
        with pytest.raises(BadValue, match=r"probability is 1.5"):
            F.dropout(torch.ones(3), 1.5)


def test_uses_randomness_names_functions_and_leaves_the_model():
    model = Mixed().eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    names = uses_randomness(model, torch.randn(2, 2, 5, 5, generator=torch.Generator()))
    assert names == [
        "torch.nn.functional.dropout",
        "torch.nn.functional.dropout2d",
        "torch.nn.functional.scaled_dot_product_attention",
    ]
    assert not model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert uses_randomness(nn.Linear(2, 2), torch.ones(1, 2)) == []
