"""What follows from a method and a model before anybody trains."""

from __future__ import annotations

from tests.methods.test_battery import start


def test_facts_hold_the_built_models_tensors_without_content():
    plan = start("fedproto").plan
    known = plan.facts.tensors
    assert set(known) == set(plan.tensors) >= {"fedproto.means", "conv.1.num_batches_tracked"}
    for name, tensor in plan.tensors.items():
        assert known[name].is_meta
        assert (known[name].shape, known[name].dtype) == (tensor.shape, tensor.dtype)
