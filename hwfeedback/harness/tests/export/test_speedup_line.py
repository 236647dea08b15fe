"""The figures are written into a file that was verified without them, and change nothing else."""

from __future__ import annotations

import ast

import pytest

from kwharness.base.requests import Speedup
from kwharness.export import annotate, speedup_line
from tests.export.test_annotate import ABOUT, CANDIDATE

SPEEDUP = Speedup(1.834, 1.78, 1.9, "eager")
SAID = "Speedup: 1.83x [1.78, 1.90] against eager, the fastest baseline (95 % interval)."


def program(text: str) -> str:
    """What a text says without its docstring, with the place of each word."""
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    return ast.dump(ast.Module(tree.body[1:], []), include_attributes=True)


@pytest.mark.parametrize(
    "own", ["", f"{speedup_line.UNKNOWN}\n", f"a\n{speedup_line.UNKNOWN}\nb\n"]
)
def test_one_line_of_the_docstring_has_the_figures(own: str) -> None:
    candidate = (f'"""{own}"""\n' if own else "") + CANDIDATE + f'\nx = "{speedup_line.UNKNOWN}"\n'
    before = annotate.written(candidate, ABOUT)
    after = speedup_line.stated(before, SPEEDUP)
    changed = [(b, a) for b, a in zip(before.split("\n"), after.split("\n"), strict=True) if a != b]
    assert changed == [(speedup_line.UNKNOWN, SAID)]
    assert before.split("\n").index(speedup_line.UNKNOWN) == after.split("\n").index(SAID)
    assert program(before) == program(after)
    # Certified again it gets its new figures.
    again = annotate.written(after, ABOUT)
    assert again == before


@pytest.mark.parametrize("against", ['a"""b', "a\\", "a\n\nb", "a\u202eb"])
def test_a_baselines_name_stays_in_its_line(against: str) -> None:
    before = annotate.written(CANDIDATE, ABOUT)
    after = speedup_line.stated(before, Speedup(2, 1, 3, against))
    assert "2.00x [1.00, 3.00] against a?" in after
    assert len(after.splitlines()) == len(before.splitlines())
    assert program(before) == program(after)


@pytest.mark.parametrize(
    "reads",
    ["__doc__", "open(p)", "import inspect", "x = __file__", "exec (t)", "f.f_code.co_filename"],
)
def test_what_may_read_itself_stays_as_it_was_verified(reads: str) -> None:
    before = annotate.written(f"{CANDIDATE}\n# {reads}\n", ABOUT)
    assert f"\n{speedup_line.KEPT}\n" in before
    assert speedup_line.stated(before, SPEEDUP) == before


@pytest.mark.parametrize("fine", ["model.eval()", "torch.compile(f)", "opens (it)", "reopen(x)"])
def test_what_only_looks_like_it_has_its_figures(fine: str) -> None:
    before = annotate.written(f"{CANDIDATE}\n# {fine}\n", ABOUT)
    assert SAID in speedup_line.stated(before, SPEEDUP)


def test_without_a_speedup_the_line_says_where_it_is() -> None:
    before = annotate.written(CANDIDATE, ABOUT)
    assert speedup_line.stated(before, None) == before
