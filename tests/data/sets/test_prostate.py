"""ProstateMRI: slices with neighbours, masks, the numbers of the paper."""

import numpy as np
import pytest
import torch

from fedshift import data
from fedshift.data.sets import prostate
from fedshift.errors import BadData

from . import making


@pytest.fixture
def sites(home):
    for k, site in enumerate(prostate.SITES):
        x = making.noise(100, 3, 16, 16, seed=k)
        y = (x[:, 1] > 128).astype(np.uint8)
        (home / "ProstateMRI").mkdir(exist_ok=True)
        np.savez(home / "ProstateMRI" / f"{site}.npz", x=x, y=y)
    return home / "ProstateMRI"


def test_six_sites_with_masks(sites):
    fed, _ = making.loaded("prostate-mri")
    assert fed.names == prostate.SITES and fed.task == "segmentation"
    assert set(making.sizes(fed).values()) == {(60, 20, 20)}
    x, y = fed["HK"].test.x, fed["HK"].test.y
    assert torch.equal(y, (x[:, 1] > 128).long())  # masks go with their slices
    mini, _ = making.loaded("prostate-mri/mini")
    assert set(making.sizes(mini).values()) == {(32, 20, 20)}


def test_the_papers_numbers():
    """FedFA's table: full and mini sizes from the number of slices of a site."""
    slices = {"BIDMC": 260, "HK": 158, "I2CVB": 468, "BMC": 384, "RUNMC": 411, "UCL": 175}
    assert [prostate.sizes(n, 0.6) for n in slices.values()] == [
        (156, 52, 52), (94, 31, 31), (280, 93, 93), (230, 76, 76), (246, 82, 82), (105, 35, 35),
    ]  # fmt: skip
    assert [prostate.sizes(n, 0.1)[0] for n in slices.values()] == [32, 32, 46, 38, 41, 32]


def test_a_missing_site_is_named(sites):
    (sites / "UCL.npz").unlink()
    with pytest.raises(BadData, match=r"holds no UCL: put there .*CaseNN_segmentation"):
        data.load("prostate-mri")


def test_a_case_without_its_mask_is_refused(sites):
    (sites / "UCL.npz").unlink()
    (sites / "UCL").mkdir()
    (sites / "UCL" / "Case00.nii.gz").touch()
    with pytest.raises(BadData, match="not one segmentation for each case"):
        data.load("prostate-mri")


def test_volumes_become_slices(sites, monkeypatch):
    """Read by a stand-in for nibabel, which need not be installed."""
    volume = np.arange(5.0)[None, None].repeat(4, 0).repeat(4, 1)
    mask = np.zeros((4, 4, 5))
    mask[:, :, 1:3] = 2
    monkeypatch.setattr(
        prostate.reading, "nifti", lambda path: mask if "segm" in path.name.lower() else volume
    )
    (sites / "UCL.npz").unlink()
    (sites / "UCL").mkdir()
    for k in range(16):
        (sites / "UCL" / f"Case{k:02d}.nii.gz").touch()
        (sites / "UCL" / f"Case{k:02d}_Segmentation.nii.gz").touch()
    slices = prostate._site(sites, "UCL")
    assert slices.x.shape == (32, 3, 4, 4) and slices.y.unique().tolist() == [1]
    assert slices.x[0, :, 0, 0].tolist() == [0, 63, 127]
    assert slices.x[1, :, 0, 0].tolist() == [63, 127, 191]
