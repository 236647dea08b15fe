"""Makes a candidate's file standalone: the loader is written into it, so that it needs torch and a
compiler only.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import textwrap

LOADER = "_kernelwright_loader"


def standalone(source: str, loader: str | None = None) -> str:
    """Returns the source with ``kernelwright`` inlined where it is imported; unchanged where it is
    not.

    Raises SyntaxError for what is not Python.
    """
    source = source.replace("\r\n", "\n")
    tree = ast.parse(source)
    imports = [
        n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and _ours(n)
    ]
    if not imports:
        return source
    loader = _loader() if loader is None else loader
    lines = [line.encode() for line in source.split("\n")]
    for node in sorted(imports, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        assert node.end_lineno is not None  # what was parsed has one
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        lines[node.lineno - 1 : node.end_lineno] = [before + _assignment(node).encode() + after]
    at = _first_statement(tree)
    text = [line.decode() for line in lines]
    return "\n".join([*text[:at], *_function(loader).split("\n"), *text[at:]])


def original(source: str) -> str:
    """Returns what a standalone file was made from, but for its imports' form; other texts as they
    are.
    """
    before, loader, after = source.replace("\r\n", "\n").partition(_function(_loader()) + "\n")
    if not loader:
        return source
    name = re.compile(rf"\b(\w+) = {LOADER}\.(\w+)(?=;|$)")
    whole = re.compile(rf"\b(\w+) = {LOADER}(?=;|$)")
    kept = [name.sub(r"from kernelwright import \2 as \1", line) for line in after.split("\n")]
    return before + "\n".join(whole.sub(r"import kernelwright as \1", line) for line in kept)


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
