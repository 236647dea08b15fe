"""The headers that a candidate's C++ and CUDA may include as ``<kw/reduce.h>``: where they lie, what
tells one release of them from another, and what stands in their place in a file that is handed out.

The texts into which they are put are foreign: that part is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "include")
MARK = "\ufeff"  # of byte order
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](kw/\w{1,40}\.h)[>"][^\n]*$', re.M)
# What includes nothing: comments and literals.
_NO_CODE = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.S,
)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.M)
_LITERAL = re.compile(r"([rRuUbB]{0,2})(\"\"\"|''')")


@functools.cache
def texts() -> dict[str, str]:
    """Returns the headers by the names that they are included by."""
    folder = os.path.join(FOLDER, "kw")
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".h"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                found[f"kw/{name}"] = f.read()
    return found


@functools.cache
def digest() -> str:
    """Names what all of them say: what was built with others is not used."""
    whole = hashlib.sha256()
    for name, text in texts().items():
        whole.update(f"{name} {len(text.encode())}\n{text}".encode())
    return whole.hexdigest()[:16]


def needed(name: str) -> list[str]:
    """Returns a header, and before it those that it includes."""
    found: list[str] = []
    for other in _INCLUDE.findall(_body(name)):
        found += [n for n in needed(other) if n not in found]
    return [*found, name]


def inlined(source: str, *, formatted: bool = False) -> str:
    """Returns a source of C++ or CUDA with the headers in the place of the lines that include them:
    each once, with what it needs, without what explains its use. ``formatted``: as the text of an
    f-string.

    A line that the preprocessor may leave out does not count for others: each header guards itself.
    """
    hidden = [m.span() for m in _NO_CODE.finditer(source)]
    done: set[str] = set()

    def text(m: re.Match[str]) -> str:
        if m[1] not in texts() or any(a <= m.start(1) - 1 < b for a, b in _beside(hidden, m)):
            return m[0]
        before = _CONDITION.findall(source, 0, m.start())
        names = [n for n in needed(m[1]) if n not in done]
        if 2 * before.count("endif") == len(before):
            done.update(names)
        said = "".join(_INCLUDE.sub("", _body(n)).replace("\n\n", "\n") for n in names)
        said = said.rstrip("\n")
        return said.replace("{", "{{").replace("}", "}}") if formatted else said

    return _INCLUDE.sub(text, source)


def _beside(hidden: list[tuple[int, int]], m: re.Match[str]) -> list[tuple[int, int]]:
    """Returns where comments and literals stand, less the name that this line includes."""
    return [(a, b) for a, b in hidden if not (a == m.start(1) - 1 and b == m.end(1) + 1)]


@functools.cache
def _body(name: str) -> str:
    """Returns a header without the comment in front of it."""
    text = texts()[name]
    return text[text.index("#ifndef ") :]


def in_python(source: str) -> str:
    """Returns a candidate's file with the headers in its strings; unchanged where none includes one.
    Raises SyntaxError for what is not Python.
    """
    if "kw/" not in source:
        return source
    tree = ast.parse(source.encode())
    mark = MARK if source.startswith(MARK) else ""
    lines = [n.encode() for n in io.StringIO(source.removeprefix(MARK), newline="").readlines()]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    for node in reversed(_strings(tree)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        a = starts[node.lineno - 1] + node.col_offset
        b = starts[node.end_lineno - 1] + node.end_col_offset
        data = data[:a] + _written(data[a:b].decode(), node).encode() + data[b:]
    text = mark + data.decode()
    try:
        ast.parse(text.encode())
    except SyntaxError:
        return source  # an f-string in quotation marks that no line may end in
    return text


def _strings(tree: ast.Module) -> list[ast.expr]:
    """Returns the strings that include a header, in their order, less those that nobody reads."""
    found: list[ast.expr] = []
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(n) for n in ast.walk(node) if n is not node)
            parts = [n.value for n in node.values if isinstance(n, ast.Constant)]
            if id(node) not in skipped and any(_INCLUDE.search(str(p)) for p in parts):
                found.append(node)
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            if isinstance(node.value, str) and _INCLUDE.search(node.value):
                found.append(node)
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _written(literal: str, node: ast.expr) -> str:
    """Returns how a string with its headers is written: as it was, where that can be."""
    if not isinstance(node, ast.Constant):
        return inlined(literal, formatted=True)
    value = inlined(str(node.value))
    m = _LITERAL.match(literal)
    if m is not None and literal.endswith(m[2]):
        head, quotes = len(m[0]), m[2]
        as_it_was = literal[:head] + inlined(literal[head : -len(quotes)]) + quotes
        if _is(as_it_was, value):
            return as_it_was
    raw = f'r"""{value}"""'
    return raw if _is(raw, value) else repr(value)


def _is(literal: str, value: str) -> bool:
    try:
        return bool(ast.literal_eval(literal) == value)
    except (SyntaxError, ValueError):
        return False
