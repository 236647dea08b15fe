"""The calls of ``kernelwright.native`` in a candidate's file, told from its text.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

import kernelwright

Import = ast.Import | ast.ImportFrom


def imports(tree: ast.Module) -> list[Import]:
    """Returns the statements that import kernelwright."""
    found = (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)))
    return [n for n in found if _is_ours(n)]


def names(found: Sequence[Import]) -> set[str]:
    """Returns the names of ``kernelwright.native``, none where anything else is imported too."""
    if not all(isinstance(n, ast.ImportFrom) for n in found):
        return set()
    aliases = [a for n in found for a in n.names]
    return (
        {a.asname or a.name for a in aliases} if {a.name for a in aliases} == {"native"} else set()
    )


def sources(tree: ast.Module, names: Collection[str]) -> tuple[str, list[str]]:
    """Returns the sources that the file makes libraries of and their language, where they have one,
    each stands in a statement of the module as it is, and nothing else refers to one of the names
    that make them.
    """
    found: list[str] = []
    languages: set[str] = set()
    calls: set[int] = set()
    for statement in tree.body:
        value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            continue
        if value.func.id not in names:
            continue
        calls.add(id(value.func))
        try:
            named = ("source", "language", "flags", "name")
            given = dict(zip(named, map(ast.literal_eval, value.args), strict=False))
            given |= {str(k.arg): ast.literal_eval(k.value) for k in value.keywords}
        except ValueError:
            return "", []
        language = given.get("language", "cpp")
        flags = tuple(given.get("flags") or ())
        if not all(isinstance(f, str) for f in flags):
            return "", []
        if flags != kernelwright._of_this_machine(flags, language):
            return "", []  # it is the whole loader that minds them
        if not isinstance(given.get("source"), str) or language not in ("cpp", "cuda"):
            return "", []
        found.append(given["source"])
        languages.add(language)
    for node in ast.walk(tree):
        loads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if loads and node.id in names and id(node) not in calls:  # type: ignore[attr-defined]
            return "", []
    return ("".join(languages), found) if len(languages) == 1 else ("", [])


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "kernelwright" and not node.level
    return any(a.name == "kernelwright" for a in node.names)
