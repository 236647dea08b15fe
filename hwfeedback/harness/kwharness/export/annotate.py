"""Writes round a certified candidate what its user has to know: a docstring in front, and behind it
what checks each call for what the file is right for.

``About`` is what the referee knows of it, as JSON; names and texts of the reference in it are
foreign, and become literals here. The candidate's own text stays as it is.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast

from kwharness.export import docstring, file_facts, file_loader, guard, reference_weights
from kwharness.export.file_facts import REBUILDS, About

NOTE = "# NOT CERTIFIED. "  # uncertifiedMark in report/uncertified.go


def written(source: str, about: About) -> str:
    """Returns the candidate's file with what was written round it before replaced."""
    body, loader = _apart(_without_note(source))
    body = _without_guard(body)
    rebuilt = _rebuilt(about)
    body = docstring.put(body, about, rebuilt=bool(rebuilt))
    return f"{body.rstrip()}\n\n\n{guard.text(body, about, rebuilt)}{loader}"


def _without_note(source: str) -> str:
    """Takes out what `kernelwright export` wrote in front of a kernel that was not certified."""
    note, blank, rest = source.partition("\n\n")
    ours = source.startswith(NOTE) and all(line.startswith("# ") for line in note.split("\n"))
    return rest if blank and ours else source


def _rebuilt(about: About) -> str:
    """Returns the function that has what makes the reference's weights, "" where there is none."""
    if not about["rebuilds"] or not about["weights"]:
        return ""
    try:
        return reference_weights.constructor(about["reference"], REBUILDS) + "\n\n\n"
    except reference_weights.Unbuilt:
        return ""


def _apart(source: str) -> tuple[str, str]:
    """Returns a file, and what compiles its sources where that stands at its end."""
    body, mark, loader = source.rpartition(file_loader.MARK)
    apart = mark and _parsed(body) is not None and _parsed(loader.partition("\n")[2]) is not None
    return (body, f"\n{mark}{loader}") if apart else (source, "")  # else it is within a literal


def _without_guard(source: str) -> str:
    """Takes out what was written here for the same file at another time."""
    body, mark, behind = source.rpartition(guard.GUARD)
    found = _parsed(behind) if mark else None
    ours = [n for n in found or () if _is_ours(n)]
    if not ours:
        return source
    lines = file_facts.lines(behind)
    for n in ours:
        assert n.end_lineno is not None
        lines[n.lineno - 1 : n.end_lineno] = [""] * (n.end_lineno - n.lineno + 1)
    rest = "".join(lines).strip()
    return f"{body.rstrip()}\n\n\n{rest}\n" if rest else body


def _is_ours(n: ast.stmt) -> bool:
    """Whether a statement behind the mark was written here."""
    if isinstance(n, ast.FunctionDef):
        return n.name in guard.FUNCTIONS
    if isinstance(n, (ast.Assign, ast.If)):
        text = ast.unparse(n)
        names = {m.id for m in ast.walk(n) if isinstance(m, ast.Name)}
        return "ModelNew." in text and bool(names & {*guard.FUNCTIONS})
    return False


def _parsed(text: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(text.encode()).body
    except (SyntaxError, ValueError):
        return None
