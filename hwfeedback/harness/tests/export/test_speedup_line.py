"""The figures are written into a file that was verified without them, and change nothing else."""

from __future__ import annotations

import ast

import pytest

from kwharness.base.verdicts import Speedup
from kwharness.export import annotate, inline_loader, speedup_line, whole_loader
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
    after = speedup_line.with_figures(before, SPEEDUP)
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
    after = speedup_line.with_figures(before, Speedup(2, 1, 3, against))
    assert "2.00x [1.00, 3.00] against a?" in after
    assert len(after.splitlines()) == len(before.splitlines())
    assert program(before) == program(after)


READS = [
    "__doc__", "open(p)", "import inspect", "x = __file__", "exec (t)", "f.f_code.co_filename",
    "io.open(p)", "os.open(p, 0)", "Path(p).open()", "p.read_text()", "globals()", "vars(m)",
    "m.__dict__", "sys.modules[m]", "from sys import modules", "frame.f_globals", "f.__globals__",
    "importlib.import_module(m)", "numpy.fromfile(p)", "std::ifstream in(p);", 'fopen(p, "r")',
]  # fmt: skip


@pytest.mark.parametrize("reads", READS)
def test_what_may_read_itself_stays_as_it_was_verified(reads: str) -> None:
    before = annotate.written(f"{CANDIDATE}\n# {reads}\n", ABOUT)
    assert f"\n{speedup_line.KEPT}\n" in before
    assert speedup_line.with_figures(before, SPEEDUP) == before


@pytest.mark.parametrize("reads", ["", "# open(p)\n"])
@pytest.mark.parametrize("front", ["", "\ufeff", "#!/usr/bin/python3\r\n# coding: utf-8\n"])
@pytest.mark.parametrize("own", ["", f"{speedup_line.KEPT}\n", f"\n{speedup_line.UNKNOWN}\n"])
def test_lines_of_the_candidate_stay(reads: str, front: str, own: str) -> None:
    """A file that must not change has the sentence in its own text, and one that is to change has
    both.
    """
    lines = f'x = """\n{speedup_line.UNKNOWN}\n{speedup_line.KEPT}\n"""\n'
    docstring = f'"""Mine.\n{own}"""\n' if own else ""
    before = annotate.written(f"{front}{docstring}{CANDIDATE}{lines}{reads}", ABOUT)
    after = speedup_line.with_figures(before, SPEEDUP)
    assert program(before.removeprefix("\ufeff")) == program(after.removeprefix("\ufeff"))
    assert after.count(SAID) == (not reads) and (after == before) == bool(reads)


def test_a_file_without_a_docstring_of_ours_is_refused() -> None:
    for text in (CANDIDATE, f"x = 1\n{annotate.written(CANDIDATE, ABOUT)}"):
        with pytest.raises(ValueError, match="does not begin with a docstring of ours"):
            speedup_line.with_figures(text, SPEEDUP)
    text = annotate.written(CANDIDATE, ABOUT).replace("Takes x", '""" + f() + """Takes x', 1)
    with pytest.raises(ValueError, match="more than the file's docstring would change"):
        speedup_line.with_figures(text, SPEEDUP)


def test_its_own_docstring_reads_nothing() -> None:
    before = annotate.written(f'"""It has an open (and exact) end."""\n{CANDIDATE}', ABOUT)
    assert SAID in speedup_line.with_figures(before, SPEEDUP)


def test_the_loader_is_not_the_candidates_text() -> None:
    """The loader opens files. What it was written into can be certified again."""
    native = "from kernelwright import native\n\nlib = native(source=str())\n"
    before = inline_loader.standalone(f"{native}{CANDIDATE}", about=ABOUT)
    assert whole_loader.LOADER in before
    handed_out = speedup_line.with_figures(before, SPEEDUP)
    assert SAID in handed_out
    again = inline_loader.standalone(handed_out, about=ABOUT)
    assert f"\n{speedup_line.UNKNOWN}\n" in again
    assert SAID in speedup_line.with_figures(again, SPEEDUP)
    reads = inline_loader.standalone(f"{native}{CANDIDATE}\n# open(p)\n", about=ABOUT)
    assert f"\n{speedup_line.KEPT}\n" in inline_loader.standalone(reads, about=ABOUT)


@pytest.mark.parametrize(
    "fine", ["model.eval()", "torch.compile(f)", "opens (it)", "reopen(x)", "self.modules()"]
)
def test_what_only_looks_like_it_has_its_figures(fine: str) -> None:
    before = annotate.written(f"{CANDIDATE}\n# {fine}\n", ABOUT)
    assert SAID in speedup_line.with_figures(before, SPEEDUP)


def test_without_a_speedup_the_line_says_so() -> None:
    before = annotate.written(CANDIDATE, ABOUT)
    assert "\nSpeedup: not measured.\n" in before
    assert speedup_line.with_figures(before, None) == before
