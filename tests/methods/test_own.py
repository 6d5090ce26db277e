"""Methods that come from a user's file: how they are found, and what is said when they are not."""

import pytest

from fedshift import methods
from fedshift.errors import BadModel, BadValue
from fedshift.method import Phase
from tests.methods.test_battery import start

HEAD = """
from dataclasses import dataclass
from typing import ClassVar
from fedshift import Method, Phase, hp

@dataclass(frozen=True)
class Mine(Method):
    p: float = hp(0.5, "a chance", low=0, high=1)
"""


def written(folder, text):
    (folder / "my.py").write_text(HEAD + text)
    return f"{folder / 'my.py'}:Mine"


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside.py").write_text("WHO = 'mine'\n")
    spec = written(tmp_path, "    from beside import WHO\n    name: ClassVar[str] = WHO\n")
    found = methods.make(f"{spec}+fedprox", {"mine.p": 0.25})
    assert found.name == "mine+fedprox" and found.parts[0].p == 0.25
    assert methods.spec_of(found.parts[0]) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no name of its own"),
        ("    name: ClassVar[str] = 'a.b'\n", "letters, digits"),
        ("    name: ClassVar[str] = 'fedprox'\n", "'fedprox', as another method is"),
        ("    name: ClassVar[str] = 'mine'\nraise KeyError('x')\n", "my.py' fails when imported"),
        ("    name: ClassVar[str] = 'mine'\nMine = 3\n", "is not a method: derive it"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message):
    with pytest.raises(BadValue, match=message) as caught:
        methods.make(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_phase_that_trains_nothing_is_named(tmp_path):
    text = "    name: ClassVar[str] = 'mine'\n    def phases(self):\n"
    spec = written(tmp_path, f"{text}        return (Phase('one', groups=('nobody',)),)\n")
    assert Phase("one", groups=("nobody",)) in methods.make(spec).phases()
    with pytest.raises(BadModel, match=r"phase 'one' of 'mine' trains nobody, but .* of model"):
        start(methods.make(spec))
