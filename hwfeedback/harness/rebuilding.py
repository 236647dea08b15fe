"""Writes what a reference's constructor makes of a seed into a file: its classes and what they are
made with, without what computes. So an exported file has the reference's weights as the reference
builds them, whatever its own constructor does.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

MODEL = "Model"


class Unbuilt(Exception):
    """A reference whose constructor cannot stand in another file."""


def constructor(reference: str) -> str:
    """Returns statements for a function's body, of which the last makes the class Model with its
    constructor and without its forward. Raises Unbuilt.
    """
    try:
        body = ast.parse(reference.encode()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Unbuilt("the reference is not Python") from e
    made = [i for i, n in enumerate(body) if MODEL in _bound(n)]
    if len(made) != 1 or not isinstance(body[made[0]], ast.ClassDef):
        raise Unbuilt("Model is not one class of the file's own")
    body = [n for n in body[: made[0] + 1] if not _is_future(n)]
    _without_forward(body[-1])
    kept: list[ast.stmt] = []
    needed = {MODEL}
    for n in reversed(body):
        if any(isinstance(m, ast.ImportFrom) and m.names[0].name == "*" for m in ast.walk(n)):
            raise Unbuilt("it imports all names of a module")
        if needed & _bound(n):
            kept.append(n)
            needed |= {m.id for m in ast.walk(n) if isinstance(m, ast.Name)}
    for n in kept:
        _without_types(n)
    return "\n".join(ast.unparse(ast.fix_missing_locations(n)) for n in reversed(kept))


def _bound(n: ast.stmt) -> set[str]:
    """The names that a statement of the module binds, where it does nothing else."""
    if isinstance(n, (ast.FunctionDef, ast.ClassDef)):
        return {n.name}
    if isinstance(n, (ast.Import, ast.ImportFrom)):
        return {(a.asname or a.name).partition(".")[0] for a in n.names}
    if isinstance(n, (ast.Assign, ast.AnnAssign)):
        targets = n.targets if isinstance(n, ast.Assign) else [n.target]
        return {m.id for t in targets for m in ast.walk(t) if isinstance(m, ast.Name)}
    if isinstance(n, (ast.If, ast.Try)):
        return {name for m in _within(n) for name in _bound(m)}
    return set()


def _within(n: ast.If | ast.Try) -> Iterator[ast.stmt]:
    yield from n.body
    yield from n.orelse
    if isinstance(n, ast.Try):
        for handler in n.handlers:
            yield from handler.body


def _is_future(n: ast.stmt) -> bool:
    return isinstance(n, ast.ImportFrom) and n.module == "__future__"


def _without_forward(model: ast.stmt) -> None:
    """Takes out what computes, unless the constructor asks for it."""
    assert isinstance(model, ast.ClassDef)
    asked = {m.attr for n in model.body for m in ast.walk(n) if isinstance(m, ast.Attribute)}
    if "forward" in asked:
        return
    model.body = [
        n for n in model.body if not (isinstance(n, ast.FunctionDef) and n.name == "forward")
    ] or [ast.Pass()]


def _without_types(n: ast.stmt) -> None:
    """Takes out what only says types: names for it may be gone. A class's fields stay."""
    for f in ast.walk(n):
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
            f.returns = None
            a = f.args
            for each in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
                if each is not None:
                    each.annotation = None
