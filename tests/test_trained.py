"""A run's models, rebuilt from its folder."""

import dataclasses
import shutil

import pytest
import torch

import fedshift as fs
from fedshift import evaluate
from fedshift.errors import BadData, BadRun, BadValue, UnknownName

PROTOCOL = fs.Protocol(rounds=1, steps=2, batch=8)


@pytest.fixture(scope="module")
def data():
    return fs.data.load("shifted-digits")


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    """A finished run of a method, played once."""
    known = {}

    def make(method, **more):
        if method not in known:
            out = tmp_path_factory.mktemp("runs") / "r"
            run = fs.Run(data, method, PROTOCOL, model="small-cnn", out=out, **more)
            known[method] = run.play()
        return known[method]

    return make


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "pfedavg", "local", "scaffold"])
def test_every_client_scores_as_in_its_run(data, ended, method):
    run = ended(method)
    trained = fs.load(run.out)
    assert trained.clients == data.names and trained.classes == data.classes
    last = {line["client"]: line for line in run.lines}
    for client in data.clients:
        score = trained.score(client.test, client=client.name)
        key = "personal_test" if run.method.view == "personal" else "test"
        assert score == pytest.approx(last[client.name][key])


def test_probabilities_are_those_of_the_run(data, ended):
    run = ended("fedavg")
    x = data["fax"].test.x[:5]
    found = fs.load(run.out).predict(x)
    logits = evaluate.logits(run.plan, run.selected[0], x)
    assert torch.allclose(found, logits.softmax(1)) and found.shape == (5, 10)
    assert torch.equal(found, fs.load(run.out).predict(x.numpy()))
    assert torch.equal(found, fs.load(run.out).predict(x[:, 0]))  # without the axis of channels


def test_an_unseen_site_scores_as_in_the_run_that_held_it_out(data, tmp_path):
    out = tmp_path / "r"
    run = fs.Run(data, "fedbn", PROTOCOL, model="small-cnn", out=out, hold_out=["fax"]).play()
    trained = fs.load(out)
    plan = trained.plan
    tensors = evaluate.for_unseen(
        plan, trained.model, list(run.progress.kept.values()), data["fax"].train.x
    )
    wanted = evaluate.logits(plan, tensors, data["fax"].train.x).softmax(1)
    assert torch.equal(trained.predict(data["fax"].train.x, unseen=True), wanted)
    assert "fax" not in trained.clients


def test_who_has_no_model_is_told_who_has(data, ended):
    x = data["fax"].test.x
    with pytest.raises(BadValue, match=r"--client .scanner.*--unseen"):
        fs.load(ended("fedbn").out).predict(x)
    with pytest.raises(UnknownName, match="fax"):
        fs.load(ended("fedbn").out).predict(x, client="fx")
    with pytest.raises(BadValue, match="never took part"):
        fs.load(ended("local").out).predict(x, unseen=True)
    with pytest.raises(BadValue, match="choose one"):
        fs.load(ended("fedbn").out).predict(x, client="fax", unseen=True)


def test_inputs_that_do_not_fit_are_refused(data, ended):
    trained = fs.load(ended("fedavg").out)
    for x, why in [
        (torch.zeros(2, 3, 16, 16), r"\[1, 16, 16\]"),
        (torch.zeros(2, 16, 16, dtype=torch.int64), "uint8"),
        (torch.full((2, 16, 16), float("nan")), "NaN"),
        (torch.zeros(0, 1, 16, 16), "at least one"),
    ]:
        with pytest.raises(BadData, match=why):
            trained.predict(x)
    with pytest.raises(BadData, match="labels"):
        trained.score((data["fax"].test.x[:3], data["fax"].test.y[:2]))


def test_foreign_tensors_are_refused(ended, tmp_path):
    shutil.copytree(ended("fedavg").out, tmp_path / "r")
    shutil.copy(
        ended("local").out / "personal" / "fax.safetensors", tmp_path / "r/model.safetensors"
    )
    with pytest.raises(BadRun, match="does not fit"):
        fs.load(tmp_path / "r")
    with pytest.raises(BadRun, match="does not exist"):
        fs.load(tmp_path / "nowhere")


def test_damaged_missing_and_foreign_files_of_clients_are_named(ended, data, tmp_path):
    x = data["fax"].test.x[:3]
    shutil.copytree(ended("fedbn").out, tmp_path / "r")
    own = tmp_path / "r" / "personal" / "fax.safetensors"
    whole = own.read_bytes()
    remedy = f"write it again with: fedshift run --resume {tmp_path / 'r'}"
    for content in (
        (ended("fedbn").out / "personal" / "camera.safetensors").read_bytes(),
        (ended("local").out / "personal" / "fax.safetensors").read_bytes(),
        whole[:100],
    ):
        own.write_bytes(content)
        with pytest.raises(BadRun, match=remedy):
            fs.load(tmp_path / "r")
    own.unlink()
    with pytest.raises(BadRun, match=rf"fax.safetensors is missing.*{remedy}"):
        fs.load(tmp_path / "r").predict(x, client="fax")
    fs.Run.resume(tmp_path / "r").play()
    assert own.read_bytes() == whole


def test_what_is_loaded_cannot_be_changed(ended):
    with pytest.raises(dataclasses.FrozenInstanceError):
        fs.load(ended("fedavg").out).metric = "luck"
