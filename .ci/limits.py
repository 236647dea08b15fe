#!/usr/bin/env python3
"""Lists what is too large in the harness's package: make lint.

A file has 500 lines at most, a function 60, a class 15 attributes, and what is called takes 6
arguments beside self. Exceptions stand with their reason in .ci/limits.toml, by what this prints of
them or by a whole file; one that is within the limits is to be taken off that list.
"""

from __future__ import annotations

import ast
import pathlib
import sys
import tomllib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "hwfeedback" / "harness" / "kwharness"
EXCEPTIONS = pathlib.Path(__file__).with_name("limits.toml")
LINES = 500
FUNCTION_LINES = 60
ATTRIBUTES = 15
PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def attributes(of: ast.ClassDef) -> set[str]:
    """Returns the fields that a class declares, and what its methods set on self."""
    found = {
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    for node in ast.walk(of):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def parameters(of: Function) -> list[str]:
    """Returns what a function takes, but for itself and what comes in lists."""
    a = of.args
    names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def definitions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yields classes and functions, however deep, with their dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{within}{node.name}"
            yield name, node
            yield from definitions(node, f"{name}.")
        else:
            yield from definitions(node, within)


def too_large(path: pathlib.Path, name: str) -> dict[str, str]:
    """Returns what of a file is beyond the limits: a key for limits.toml, and what is wrong."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    found = {name: f"{lines} lines; {LINES} may be"} if lines > LINES else {}
    for at, node in definitions(ast.parse(text)):
        key = f"{name}:{at}"
        if isinstance(node, ast.ClassDef):
            if (n := len(attributes(node))) > ATTRIBUTES:
                found[f"{key} attributes"] = f"{n} attributes; {ATTRIBUTES} may be"
            continue
        assert node.end_lineno is not None
        if (n := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
            found[f"{key} lines"] = f"{n} lines; {FUNCTION_LINES} may be"
        if (n := len(parameters(node))) > PARAMETERS:
            found[f"{key} parameters"] = f"{n} parameters; {PARAMETERS} may be"
    return found


def covers(excepted: dict[str, str], key: str) -> bool:
    """Whether what is too large is an exception, by itself or with all of its file."""
    return key in excepted or f"{key.partition(':')[0]}:*" in excepted


def problems(package: pathlib.Path, excepted: dict[str, str]) -> list[str]:
    """Returns a line for all that is too large and no exception, and for each false exception."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        found |= too_large(path, path.relative_to(package).as_posix())
    lines = [f"{key}: {wrong}" for key, wrong in found.items() if not covers(excepted, key)]
    for key, why in excepted.items():
        if not any(covers({key: why}, one) for one in found):
            lines.append(f"{key}: is within the limits: take it off .ci/limits.toml")
        if not why.strip():
            lines.append(f"{key}: its reason is missing")
    return lines


def main() -> int:
    excepted = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    found = problems(PACKAGE, excepted)
    print("\n".join(found) or f"limits: {len(excepted)} exceptions in .ci/limits.toml")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
