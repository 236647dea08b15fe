from __future__ import annotations

import pathlib

import pytest

import mutants

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", mutants.mutants(), ids=lambda m: m.name)
def test_a_fault_is_put_into_todays_code(mutant: mutants.Mutant, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant.file).read_text())
    mutant.put_into(tmp_path)
    changed = copy.read_text()
    compile(changed, mutant.file, "exec")
    assert changed != (ROOT / mutant.file).read_text()
    with pytest.raises(ValueError, match="0 places"):
        mutant.put_into(tmp_path)


TESTS = """
import fault

def test_it():
    assert fault.LIMIT == 8

def test_another():
    assert fault.LIMIT < 90
"""


def test_a_fault_is_found_or_not(tmp_path: pathlib.Path) -> None:
    (tmp_path / "fault.py").write_text("LIMIT = 8\n")
    (tmp_path / "test_fault.py").write_text(TESTS)
    found = mutants.Mutant("found", "fault.py", "8", "9")
    unseen = mutants.Mutant("unseen", "fault.py", "LIMIT = 8", "LIMIT = 8  # or so")
    both = mutants.Mutant("both", "fault.py", "8", "90")
    given = tmp_path, ["-n", "0"], 300.0
    one = mutants.trial(found, *given, every=True)
    assert [t.rpartition("::")[2] for t in one.failed] == ["test_it"] and one.over
    assert not mutants.trial(unseen, *given, every=True).failed
    assert len(mutants.trial(both, *given, every=True).failed) == 2
    assert len(mutants.trial(both, *given, every=False).failed) == 1
    assert "not found" in mutants.row(one, one.failed) and "test_it" in mutants.row(one, [])
