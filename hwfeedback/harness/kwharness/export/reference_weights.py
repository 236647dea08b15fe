"""Writes what a reference's constructor makes of a seed into a file: its classes and what they are
made with, without what computes. So an exported file has the reference's weights as the reference
builds them, whatever its own constructor does.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

MODEL = "Model"
_ABOUT = (
    "Returns the reference's Model with its constructor alone, of its own text: it makes weights."
)
_IN_A_MODULE = {"globals", "locals", "vars", "exec", "eval"}  # mean something else in a function
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORT = (ast.Import, ast.ImportFrom)


class Unbuilt(Exception):
    """A reference whose constructor cannot stand in another file."""


def constructor(reference: str, name: str) -> str:
    """Returns a function of this name without parameters: what it returns is the class Model with
    its constructor and without its forward. Raises Unbuilt, also where a statement that would be
    left out may have a part in what is made.
    """
    try:
        body = ast.parse(reference.encode()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Unbuilt("the reference is not Python") from e
    made = [n for n in body if MODEL in _bound(n)]
    if len(made) != 1 or not isinstance(made[0], ast.ClassDef):
        raise Unbuilt("Model is not one class of the file's own")
    body = [n for n in body if not _is_nothing(n)]
    _without_forward(made[0])
    for n in body:
        _without_types(n)
    if any(isinstance(m, ast.ImportFrom) and m.names[0].name == "*" for m in _all(body)):
        raise Unbuilt("it imports all names of a module")
    kept, needed = _kept(body)
    _refuse(kept, [n for n in body if n not in kept], needed)
    text = _function(kept, name)
    try:
        compile(text, "reference", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Unbuilt("its statements cannot stand in a function") from e
    return text


def _kept(body: Sequence[ast.stmt]) -> tuple[list[ast.stmt], set[str]]:
    """Returns the statements that bind what Model needs, and all names that these need."""
    needed = {MODEL}
    kept: set[int] = set()
    while found := [i for i, n in enumerate(body) if i not in kept and needed & _bound(n)]:
        kept.update(found)
        needed |= _names([body[i] for i in found])
    return [body[i] for i in sorted(kept)], needed


def _refuse(kept: Sequence[ast.stmt], dropped: Sequence[ast.stmt], needed: set[str]) -> None:
    """Raises Unbuilt where what is made may depend on more than the statements that are kept."""
    if needed & _IN_A_MODULE:
        raise Unbuilt("it asks for the names of its module")
    for m in _all([*kept, *dropped]):
        if isinstance(m, ast.Global) and needed & {*m.names}:
            raise Unbuilt(f"a function changes {m.names[0]} of the module")
    values = needed - {name for n in kept if isinstance(n, _IMPORT) for name in _bound(n)}
    for n in dropped:
        if isinstance(n, (*_DEFINITION, *_IMPORT)):
            continue
        where = f"line {n.lineno} of the reference"
        inside = list(ast.walk(n))
        calls = any(isinstance(m, (ast.Call, ast.Await)) for m in inside)
        if _bound(n):  # a value for others: a call with what is needed may change that
            if calls and values & _names([n]):
                raise Unbuilt(f"{where} may change what Model is made with")
        elif calls or needed & _names([n]):
            raise Unbuilt(f"{where} may change what Model is made with")


def _function(body: Sequence[ast.stmt], name: str) -> str:
    head = ast.parse(f"def {name}():\n    {_ABOUT!r}\n    return {MODEL}\n")
    function = head.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[1:1] = body
    return ast.unparse(ast.fix_missing_locations(head))


def _all(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for n in body:
        yield from ast.walk(n)


def _names(body: Sequence[ast.stmt]) -> set[str]:
    return {m.id for m in _all(body) if isinstance(m, ast.Name)}


def _bound(n: ast.stmt) -> set[str]:
    """The names that a statement of the module binds, where it does nothing else."""
    if isinstance(n, _DEFINITION):
        return {n.name}
    if isinstance(n, _IMPORT):
        return {(a.asname or a.name).partition(".")[0] for a in n.names}
    if isinstance(n, (ast.Assign, ast.AnnAssign)):
        targets = n.targets if isinstance(n, ast.Assign) else [n.target]
        parts = [m for t in targets for m in ast.walk(t)]
        if any(isinstance(m, (ast.Attribute, ast.Subscript)) for m in parts):
            return set()
        return {m.id for m in parts if isinstance(m, ast.Name)}
    if isinstance(n, (ast.If, ast.Try)):
        each = [_bound(m) for m in _within(n) if not isinstance(m, ast.Pass)]
        return set().union(*each) if all(each) else set()
    return set()


def _within(n: ast.If | ast.Try) -> Iterator[ast.stmt]:
    yield from n.body
    yield from n.orelse
    if isinstance(n, ast.Try):
        for handler in n.handlers:
            yield from handler.body
        yield from n.finalbody


def _is_nothing(n: ast.stmt) -> bool:
    """Whether it does nothing where a file is imported, or says how the file is read."""
    if isinstance(n, ast.ImportFrom):
        return n.module == "__future__"
    if isinstance(n, ast.If):
        return not n.orelse and ast.unparse(n.test) == "__name__ == '__main__'"
    return isinstance(n, ast.Pass) or (
        isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    )


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
