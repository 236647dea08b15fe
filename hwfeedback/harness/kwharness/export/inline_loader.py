"""Makes a candidate's file standalone: the loader is written into it, so that it needs torch and a
compiler only.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kwharness.build import headers, native_calls, used_headers
from kwharness.export import annotate, file_facts, file_loader, whole_loader
from kwharness.export.file_facts import About

MARK = headers.MARK
LOADER = whole_loader.LOADER


def standalone(source: str, loader: str | None = None, about: About | None = None) -> str:
    """Returns the source with ``kernelwright`` inlined where it is imported, and our headers where
    they are included; unchanged, to the last byte, where neither is. ``about``: what its user has
    to know, which is written round it first.

    Raises SyntaxError for what is not Python.
    """
    if about is not None:
        source = annotate.written(source, about)
    if "cpp_extension" in source:  # which knows nothing of our headers
        source = headers.in_python(source)
    tree = ast.parse(source.encode())
    imports = native_calls.imports(tree)
    if not imports:
        return source
    needed = used_headers.of_file(source)
    if loader is None:
        names = native_calls.names(imports)
        if native_calls.sources(tree, names)[1]:  # they stand in the file as they are
            source, needed = headers.in_python(source, names, needed), {}
            tree = ast.parse(source.encode())
            imports = native_calls.imports(tree)
            short = _with_short_loader(source, tree, imports)
            if short:
                return short
    loader = whole_loader.source() if loader is None else loader
    return _replaced(
        source, tree, imports, f"{whole_loader.function(loader)}{_headers(needed)}\n", LOADER + "."
    )


def _headers(known: headers.Table) -> str:
    """Returns the statement that has the whole loader know these headers, "" for none."""
    entries = "".join(
        f'    "{name}": ({tuple(needs)!r}, r"""{text}"""),\n'
        for name, (needs, text) in known.items()
    )
    return f"{LOADER}.headers.update({{\n{entries}}})\n" if entries else ""


def _replaced(
    source: str,
    tree: ast.Module,
    imports: Sequence[native_calls.Import],
    front: str,
    owner: str = "",
) -> str:
    """Returns the file with ``front`` before its first statement, and what that makes in the place
    of what is imported.
    """
    mark = MARK if source.startswith(MARK) else ""
    lines = [line.encode() for line in file_facts.lines(source.removeprefix(MARK))]
    for node in sorted(imports, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        assert node.end_lineno is not None  # what was parsed has one
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        stands = _assignment(node) if owner else _assignment(node, file_loader.NATIVE)
        lines[node.lineno - 1 : node.end_lineno] = [before + stands.encode() + after]
    at = whole_loader.first_statement(tree)
    text = [line.decode() for line in lines]
    return mark + "".join([*text[:at], front, *text[at:]])


def _with_short_loader(
    source: str, tree: ast.Module, imports: Sequence[native_calls.Import]
) -> str:
    """Returns the file with what its sources need in place of the whole loader, or "" where there
    is no such loader. The sources stand in it as they are.
    """
    if file_loader.NAMES.search(source):
        return ""
    language, sources = native_calls.sources(tree, native_calls.names(imports))
    try:
        behind = file_loader.behind(sources, language)
    except file_loader.Unwritten:
        return ""
    text = _replaced(source, tree, imports, file_loader.FRONT)
    return text + ("" if text.endswith("\n") else "\n") + "\n" + behind


def read_as(source: str) -> str:
    """Returns the text by which it is found out what a file asks to have built: of a standalone one
    the loader is ours, and all its lines keep their numbers. What is judged is the file itself.
    """
    if file_loader.MARK in source:
        return _read_short(source)
    return whole_loader.as_import(source)


def _read_short(source: str) -> str:
    """The same of a file with a short loader."""
    text = source.rpartition(file_loader.MARK)[0]
    front = file_loader.FRONT.lstrip("\n")
    if text.count(front) != 1:
        return source
    try:
        tree = ast.parse(text.encode())
        made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and _is_ours(n.value)]
        names = {t.id for n in made for t in n.targets if isinstance(t, ast.Name)}
        language, sources = native_calls.sources(tree, names)
        if not sources:
            return source
        behind = file_loader.behind(sources, language)
    except (SyntaxError, ValueError, RecursionError, MemoryError, file_loader.Unwritten):
        return source  # its reader says why
    if behind != source[len(text) :]:
        return source
    ours = f"from kernelwright import native as {file_loader.NATIVE}\n"
    ours += "\n" * (front.count("\n") - 1)
    return text.replace(front, ours) + "\n" * behind.count("\n")


def _is_ours(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == file_loader.NATIVE


def _assignment(node: native_calls.Import, native: str = "") -> str:
    """What an import statement becomes."""
    if isinstance(node, ast.ImportFrom) and native:
        return "; ".join(f"{a.asname or a.name} = {native}" for a in node.names)
    if isinstance(node, ast.ImportFrom):
        return "; ".join(f"{a.asname or a.name} = {LOADER}.{a.name}" for a in node.names)
    others = [a for a in node.names if a.name != "kernelwright"]
    ours = [f"{a.asname or a.name} = {LOADER}" for a in node.names if a.name == "kernelwright"]
    return "; ".join(([ast.unparse(ast.Import(others))] if others else []) + ours)
