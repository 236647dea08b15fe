"""Makes a candidate's file standalone: the loader is written into it, so that it needs torch and a
compiler only.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import functools
import io
import os
import textwrap

MARK = "\ufeff"  # of byte order
LOADER = "_kernelwright_loader"


def standalone(source: str, loader: str | None = None) -> str:
    """Returns the source with ``kernelwright`` inlined where it is imported; unchanged, to the last
    byte, where it is not.

    Raises SyntaxError for what is not Python.
    """
    tree = ast.parse(source.encode())
    imports = [
        n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and _ours(n)
    ]
    if not imports:
        return source
    loader = _loader() if loader is None else loader
    mark = MARK if source.startswith(MARK) else ""
    lines = [line.encode() for line in _lines(source.removeprefix(MARK))]
    for node in sorted(imports, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        assert node.end_lineno is not None  # what was parsed has one
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        lines[node.lineno - 1 : node.end_lineno] = [before + _assignment(node).encode() + after]
    at = _first_statement(tree)
    text = [line.decode() for line in lines]
    return mark + "".join([*text[:at], _function(loader) + "\n", *text[at:]])


def read_as(source: str) -> str:
    """Returns the text by which it is found out what a file asks to have built: of a standalone one
    the loader is ours, and all its lines keep their numbers. What is judged is the file itself.
    """
    if LOADER not in source:
        return source
    loader = _lines(_function(_loader()).lstrip("\n"))
    lines = _lines(source)
    try:
        body = ast.parse(source.encode()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # whoever reads it says why
    for at in [n.lineno - 1 for n in body if isinstance(n, ast.FunctionDef) and n.name == LOADER]:
        if lines[at : at + len(loader)] == loader:
            ours = [f"import kernelwright as {LOADER}\n", *["\n"] * (len(loader) - 1)]
            return "".join([*lines[:at], *ours, *lines[at + len(loader) :]])
    return source


def _lines(text: str) -> list[str]:
    """The lines of a text as Python counts them, each with what ends it."""
    return io.StringIO(text, newline="").readlines()


@functools.cache
def _loader() -> str:
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "kernelwright.py")
    with open(path, encoding="utf-8") as f:
        return f.read()


def _ours(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "kernelwright" and not node.level
    return any(a.name == "kernelwright" for a in node.names)


def _assignment(node: ast.Import | ast.ImportFrom) -> str:
    """What an import statement becomes."""
    if isinstance(node, ast.ImportFrom):
        return "; ".join(f"{a.asname or a.name} = {LOADER}.{a.name}" for a in node.names)
    others = [a for a in node.names if a.name != "kernelwright"]
    ours = [f"{a.asname or a.name} = {LOADER}" for a in node.names if a.name == "kernelwright"]
    return "; ".join(([ast.unparse(ast.Import(others))] if others else []) + ours)


def _first_statement(tree: ast.Module) -> int:
    """The number of lines that must stay in front: the docstring and imports from __future__."""
    at = 0
    for i, node in enumerate(tree.body):
        docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not (docstring or future):
            break
        at = node.end_lineno or at
    return at


@functools.cache  # a batch asks for each that comes next, and reading the loader takes long
def _function(loader: str) -> str:
    """The loader as a function, so that none of its names meets one of the candidate's."""
    tree = ast.parse(loader)
    lines = loader.split("\n")
    notes = ast.get_docstring(tree) or ""
    body = "\n".join(lines[_first_statement(tree) :]).strip("\n")
    indented = textwrap.indent(body, "    ")
    about = textwrap.indent(f'"""{notes}\n"""', "    ")
    return (
        f"\ndef {LOADER}():\n{about}\n    import types\n\n{indented}\n\n"
        f"    return types.SimpleNamespace(native=native)\n\n\n{LOADER} = {LOADER}()\n"
    )
