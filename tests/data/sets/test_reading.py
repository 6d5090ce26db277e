"""The publishers' formats, whole and broken; nothing is unpickled."""

import gzip
import pickle

import numpy as np
import pytest

from fedshift.data.sets import reading
from fedshift.errors import BadData

from . import making


def test_idx_packed_or_not(tmp_path):
    array = making.noise(3, 4, 5)
    for name in ("a", "a.gz"):
        making.idx(tmp_path / name, array)
        assert np.array_equal(reading.idx(tmp_path / name), array)


@pytest.mark.parametrize("cut", [2, 9, 40])
def test_a_cut_idx_file_is_named(tmp_path, cut):
    making.idx(tmp_path / "a", making.noise(3, 4, 5))
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:cut])
    with pytest.raises(BadData, match=f"{tmp_path}/a"):
        reading.idx(tmp_path / "a")


def test_a_cut_gz_file_is_named(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(making.noise(999).tobytes())[:200])
    with pytest.raises(BadData, match=f"cannot read {path}"):
        reading.idx(path)


def test_differences_are_summed_back(tmp_path):
    rgb = making.noise(4, 5, 6, 3)
    r, g, b = (rgb[..., k] for k in range(3))
    planes = np.stack([g, r - g, b - g], axis=1)
    d = np.diff(np.diff(planes, axis=2, prepend=np.uint8(0)), axis=3, prepend=np.uint8(0))
    np.savez(tmp_path / "s.npz", x_train_d=d.astype(np.uint8), y_train=np.arange(4))
    found = reading.npz(tmp_path)
    assert list(found) == ["train"]
    assert np.array_equal(found["train"].x.numpy(), rgb.transpose(0, 3, 1, 2))


def test_plain_arrays_may_lie_in_several_files_but_only_once(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=making.noise(4, 8, 8), y_train=np.arange(4))
    np.savez(tmp_path / "b.npz", x_test=making.noise(2, 8, 8), y_test=np.arange(2))
    assert {s: len(p) for s, p in reading.npz(tmp_path).items()} == {"train": 4, "test": 2}
    np.savez(tmp_path / "c.npz", x_test=making.noise(2, 8, 8), y_test=np.arange(2))
    with pytest.raises(BadData, match="'x_test' in two"):
        reading.npz(tmp_path)


def test_images_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=making.noise(4, 8, 8))
    with pytest.raises(BadData, match="no 'y_train'"):
        reading.npz(tmp_path)


def test_cropped_digits_have_0_for_10(tmp_path):
    making.mat(tmp_path / "a.mat", 12)
    found = reading.cropped_digits(tmp_path / "a.mat")
    assert found.y.tolist() == [*range(10), 0, 1]
    assert np.array_equal(found.x.numpy(), making.noise(32, 32, 3, 12).transpose(3, 2, 0, 1))


def test_a_broken_matlab_file_is_named(tmp_path):
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(BadData, match=r"cannot read .*a\.mat"):
        reading.cropped_digits(tmp_path / "a.mat")


def test_records_of_another_length(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(3073 * 2))
    assert reading.records(tmp_path / "a.bin", 1)[0].shape == (2, 3, 32, 32)
    with pytest.raises(BadData, match="not records of 3074"):
        reading.records(tmp_path / "a.bin", 2)


def test_h5_or_what_to_install(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for split, n in (("train", 3), ("test", 2)):
            file[f"{split}/data"] = np.zeros((n, 256), np.float32)
            file[f"{split}/target"] = np.arange(n)
    assert reading.h5(tmp_path / "usps.h5")["test"][0].shape == (2, 256)


def test_a_module_that_is_missing_is_named(tmp_path):
    with pytest.raises(BadData, match="pip install nothing-such"):
        reading._module("nothing_such", "it is a file", "nothing-such")


def test_pickles_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    (tmp_path / "a.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadData, match=r"a\.npz"):
        reading.npz(tmp_path)


def test_a_list_of_images(tmp_path):
    (tmp_path / "l.txt").write_text("real/ice_cream/a b.jpg 3\nreal/zebra/c.jpg 9\n")
    assert reading.listed(tmp_path / "l.txt") == {("icecream", "a b.jpg"), ("zebra", "c.jpg")}
    (tmp_path / "l.txt").write_text("nothing of the kind\n")
    with pytest.raises(BadData, match=r"l\.txt is no list"):
        reading.listed(tmp_path / "l.txt")


def test_folders_decode_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    calls = []

    def read():
        calls.append(1)
        return reading.npz(folder)

    for n in (4, 6):
        np.savez(folder / "a.npz", x_train=making.noise(n, 8, 8), y_train=np.arange(n))
        for _ in range(2):
            found = reading.kept(folder, read)["train"]
            assert np.array_equal(found.x[:, 0].numpy(), making.noise(n, 8, 8))
    assert len(calls) == 2
    for path in (tmp_path / "cache").iterdir():  # damaged: decoded again
        path.write_bytes(path.read_bytes()[:-3])
    assert len(reading.kept(folder, read)["train"]) == 6 and len(calls) == 3
