"""The loader, kernelwright.py, as a function within a file that is handed out: how it is written
there, and found again.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import functools
import os
import textwrap

from kwharness.base import paths
from kwharness.export import file_facts

LOADER = "_kernelwright_loader"


def source() -> str:
    return _read(os.path.join(paths.ROOT, "kernelwright.py"))


@functools.cache
def _read(path: str) -> str:
    with open(path, encoding="utf-8") as f:
        return f.read()


def first_statement(tree: ast.Module) -> int:
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
def function(loader: str) -> str:
    """The loader as a function, so that none of its names meets one of the candidate's."""
    tree = ast.parse(loader)
    lines = loader.split("\n")
    notes = ast.get_docstring(tree) or ""
    body = "\n".join(lines[first_statement(tree) :]).strip("\n")
    indented = textwrap.indent(body, "    ")
    about = textwrap.indent(f'"""{notes}\n"""', "    ")
    return (
        f"\ndef {LOADER}():\n{about}\n    import types\n\n{indented}\n\n"
        f"    return types.SimpleNamespace(native=native, headers=headers)\n\n\n"
        f"{LOADER} = {LOADER}()\n"
    )


def as_import(text: str) -> str:
    """Returns a file with an import in the place of the loader. All lines keep their numbers."""
    if LOADER not in text:
        return text
    loader = file_facts.lines(function(source()).lstrip("\n"))
    lines = file_facts.lines(text)
    try:
        body = ast.parse(text.encode()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text  # its reader says why
    for at in [n.lineno - 1 for n in body if isinstance(n, ast.FunctionDef) and n.name == LOADER]:
        if lines[at : at + len(loader)] == loader:
            ours = [f"import kernelwright as {LOADER}\n", *["\n"] * (len(loader) - 1)]
            return "".join([*lines[:at], *ours, *lines[at + len(loader) :]])
    return text
