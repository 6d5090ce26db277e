"""The optimizers against torch's own; rows, masks and clipping against one client at a time."""

import pytest
import torch

from fedshift.errors import BadValue, UnknownName
from fedshift.optim import Optimizer, clip_
from fedshift.tree import row, stack

SHAPES = {"w": (3, 4), "b": (4,), "scalar": ()}
RULES = [
    (Optimizer("sgd"), torch.optim.SGD, {}),
    (Optimizer("sgd", weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    (Optimizer("sgd", momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (
        Optimizer("sgd", momentum=0.9, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    (Optimizer("adam"), torch.optim.Adam, {}),
    (
        Optimizer("adam", eps=1e-4, betas=(0.8, 0.95), weight_decay=0.1),
        torch.optim.Adam,
        {"eps": 1e-4, "betas": (0.8, 0.95), "weight_decay": 0.1},
    ),
    (Optimizer("adamw", weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
]
EVERY = pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES], ids=str)


def draw(seed, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return {
        n: torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for n, s in SHAPES.items()
    }


def copied(tree):
    return {n: t.clone() for n, t in tree.items()}


@pytest.mark.parametrize(("rule", "theirs", "kwargs"), RULES, ids=[str(r[0]) for r in RULES])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_equals_torch_over_20_steps(rule, theirs, kwargs, tensor_lr):
    params = draw(0)
    leaves = {n: t.clone().requires_grad_() for n, t in params.items()}
    optimizer = theirs(leaves.values(), lr=0.05, **kwargs)
    state = rule.init(params)
    lr = torch.tensor(0.05, dtype=torch.float64) if tensor_lr else 0.05
    for i in range(20):
        grads = draw(100 + i)
        before = copied(grads)
        for n, leaf in leaves.items():
            leaf.grad = grads[n].clone()
        optimizer.step()
        rule.update(params, grads, state, lr)
        assert all(torch.equal(grads[n], before[n]) for n in grads)
    for n, leaf in leaves.items():
        torch.testing.assert_close(params[n], leaf.detach(), rtol=0, atol=1e-12)


@EVERY
def test_rows_with_uneven_steps_equal_one_client_at_a_time(rule):
    rows, steps = 3, [6, 2, 4]
    alone = [draw(k) for k in range(rows)]
    params = stack(alone)
    state = rule.init(params, rows)
    states = [rule.init(p) for p in alone]
    for i in range(max(steps)):
        grads = [draw(100 * k + i) for k in range(rows)]
        active = torch.tensor([i < s for s in steps])
        rule.update(params, stack(grads), state, 0.05, active)
        for k in range(rows):
            if i < steps[k]:
                rule.update(alone[k], grads[k], states[k], 0.05)
    for k in range(rows):
        for n, t in row(params, k).items():
            torch.testing.assert_close(t, alone[k][n], rtol=0, atol=1e-12)
        for n, t in row(state, k).items():
            torch.testing.assert_close(t, states[k][n], rtol=0, atol=1e-12)


@EVERY
def test_masked_rows_keep_every_bit(rule):
    params = stack([draw(0), draw(1)])
    params["w"][1, 0] = -0.0
    state = rule.init(params, 2)
    rule.update(params, stack([draw(2), draw(3)]), state, 0.05)
    before, kept = copied(params), copied(state)
    grads = stack([draw(4), {n: torch.full_like(t, torch.nan) for n, t in draw(5).items()}])
    rule.update(params, grads, state, 0.05, torch.tensor([True, False]))
    for old, new in ((before, params), (kept, state)):
        for n, t in old.items():
            assert torch.equal(t[1].view(torch.int64), new[n][1].view(torch.int64))
            assert torch.isfinite(new[n][0]).all()
    assert not torch.equal(before["w"][0], params["w"][0])


@EVERY
def test_mixed_types_and_missing_gradients(rule):
    params = {"half": draw(0, torch.float32)["w"], "full": draw(1)["w"], "still": draw(2)["w"]}
    before = copied(params)
    state = rule.init(params, rows=3)
    grads = {n: torch.ones_like(params[n]) for n in ("half", "full")}
    rule.update(params, grads, state, torch.tensor(0.05), torch.tensor([True, False, True]))
    assert params["half"].dtype == torch.float32 and params["full"].dtype == torch.float64
    assert torch.equal(params["still"], before["still"])
    assert torch.equal(params["half"][1], before["half"][1])
    expected = copied(before)
    rule.update(expected, grads, rule.init(expected), 0.05)
    torch.testing.assert_close(params["half"][0], expected["half"][0])
    torch.testing.assert_close(params["full"][2], expected["full"][2], rtol=1e-6, atol=1e-7)


def test_state_is_updated_in_place():
    rule, params = Optimizer("adam"), draw(0)
    state = rule.init(params)
    places = {n: t.data_ptr() for n, t in {**params, **state}.items()}
    rule.update(params, draw(1), state, 0.1)
    assert places == {n: t.data_ptr() for n, t in {**params, **state}.items()}
    assert state["step"] == 1
    rule.update(params, {}, state, 0.1)
    assert state["step"] == 1


@pytest.mark.parametrize("limit", [0.5, 3.0, 100.0])
def test_clipping_equals_torch(limit):
    trees = [draw(k) for k in range(3)]
    together = stack(trees)
    norms = clip_(together, limit, rows=3)
    for k, tree in enumerate(trees):
        leaves = [t.clone().requires_grad_() for t in tree.values()]
        for leaf, t in zip(leaves, tree.values()):
            leaf.grad = t.clone()
        theirs = torch.nn.utils.clip_grad_norm_(leaves, limit)
        ours = clip_(tree, limit)
        for i, n in enumerate(SHAPES):
            torch.testing.assert_close(tree[n], leaves[i].grad, rtol=0, atol=1e-14)
            torch.testing.assert_close(together[n][k], leaves[i].grad, rtol=0, atol=1e-14)
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
        torch.testing.assert_close(norms[k], theirs, rtol=1e-14, atol=0)


def test_wrong_values():
    with pytest.raises(UnknownName, match="unknown optimizer 'adamww': did you mean adamw"):
        Optimizer("adamww")
    with pytest.raises(BadValue, match="nesterov needs momentum"):
        Optimizer("sgd", nesterov=True)
    with pytest.raises(BadValue, match="weight_decay is -1"):
        Optimizer("sgd", weight_decay=-1)
    with pytest.raises(BadValue, match="betas"):
        Optimizer("adam", betas=(0.9, 1.0))
