"""The headers that a candidate's C++ and CUDA may include, as ``<kw/reduce.h>``: what tells one
release of them from another, what stands in the place of the lines that include them
(``kernelwright._inlined`` puts it there, wherever a source is compiled), and where a compiler's
words lie in a text that has them.

The texts into which they are put are foreign: that part is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import os
import re
from collections.abc import Collection, Iterator, Sequence

import kernelwright

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "include")
MARK = "\ufeff"  # of byte order
_INCLUDE = kernelwright._HEADER
_CONDITION = kernelwright._CONDITION
_NAME = re.compile(r"\bkw/\w{1,40}\.h\b")
_LITERAL = re.compile(r"([rRuUbB]{0,2})(\"\"\"|''')")
Table = dict[str, tuple[Sequence[str], str]]


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
    """Names what all of them say: what was judged with others is judged anew."""
    whole = hashlib.sha256()
    for name, text in texts().items():
        whole.update(f"{name} {len(text.encode())}\n{text}".encode())
    return whole.hexdigest()[:16]


def needed(name: str) -> list[str]:
    """Returns a header, and before it those that it includes."""
    found: list[str] = []
    for other in _INCLUDE.findall(texts()[name]):
        found += [n for n in needed(other) if n not in found]
    return [*dict.fromkeys(found), name]


@functools.cache
def _body(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the lines that stand for a header, and their numbers in it: without the comment in
    front, what it includes, and empty lines.
    """
    text = texts()[name]
    first = text[: text.index("#ifndef ")].count("\n") + 1
    lines = list(enumerate(text.split("\n")[first - 1 :], first))
    kept = [(n, line) for n, line in lines if line.strip() and not _INCLUDE.match(line)]
    return tuple(line for _, line in kept), tuple(n for n, _ in kept)


@functools.cache
def _whole() -> Table:
    return {n: (tuple(needed(n)[:-1]), "\n".join(_body(n)[0])) for n in texts()}


def table(names: Collection[str] | None = None) -> Table:
    """Returns what ``kernelwright._inlined`` takes: all of them, or these and what they need."""
    if names is None:
        return dict(_whole())
    wanted = {m for n in names if n in texts() for m in needed(n)}
    return {n: entry for n, entry in _whole().items() if n in wanted}


def inlined(source: str) -> str:
    """Returns a source of C++ or CUDA with the headers where it includes them."""
    return kernelwright._inlined(source, _whole())


def mentioned(source: str) -> list[str]:
    """Returns the headers that the strings of a candidate's file name: others are not there where
    that is handed out. Raises SyntaxError for what is not Python.
    """
    if "kw/" not in source:
        return []
    tree = ast.parse(source.encode())
    alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    strings = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in alone)
    found = (_NAME.findall(n.value) for n in strings if isinstance(n.value, str))
    return sorted({name for names in found for name in names} & texts().keys())


def in_python(
    source: str,
    calls: Collection[str] | None = None,
    known: Table | None = None,
) -> str:
    """Returns a candidate's file with the headers in its strings, unchanged where none includes
    one. ``calls``: in those alone that a function of these names is given as they are. ``known``:
    what stands for a header, else all of it. Raises SyntaxError for what is not Python.
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
    for node in reversed(_strings(tree, calls)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        a = starts[node.lineno - 1] + node.col_offset
        b = starts[node.end_lineno - 1] + node.end_col_offset
        data = data[:a] + _written(data[a:b].decode(), node, known or _whole()).encode() + data[b:]
    text = mark + data.decode()
    try:
        ast.parse(text.encode())
    except SyntaxError:
        return source  # an f-string in quotation marks that no line may end in
    return text


def _strings(tree: ast.Module, calls: Collection[str] | None = None) -> list[ast.expr]:
    """Returns the strings that include a header, in their order, less those that nobody reads."""
    found: list[ast.expr] = []
    skipped: set[int] = set()
    given: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            values = [*node.args, *(k.value for k in node.keywords)]
            given.update(id(v) for v in values if node.func.id in (calls or ()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(n) for n in ast.walk(node) if n is not node)
            parts = [n.value for n in node.values if isinstance(n, ast.Constant)]
            if id(node) not in skipped and any(_INCLUDE.search(str(p)) for p in parts):
                found.append(node)
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in skipped
            and isinstance(node.value, str)
            and _INCLUDE.search(node.value)
        ):
            found.append(node)
    found = [n for n in found if calls is None or id(n) in given]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _written(literal: str, node: ast.expr, table: Table) -> str:
    """Returns how a string with its headers is written: as it was, where that can be."""
    if not isinstance(node, ast.Constant):
        doubled = {n: (needs, _doubled(text)) for n, (needs, text) in table.items()}
        return kernelwright._inlined(literal, doubled)
    value = kernelwright._inlined(str(node.value), table)
    m = _LITERAL.match(literal)
    if m is not None and literal.endswith(m[2]):
        head, quotes = len(m[0]), m[2]
        inside = kernelwright._inlined(literal[head : -len(quotes)], table)
        as_it_was = literal[:head] + inside + quotes
        if _is(as_it_was, value):
            return as_it_was
    raw = f'r"""{value}"""'
    return raw if _is(raw, value) else repr(value)


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _is(literal: str, value: str) -> bool:
    try:
        return bool(ast.literal_eval(literal) == value)
    except (SyntaxError, ValueError):
        return False


class Handed:
    """What becomes of the sources that one file gives to ``load_inline`` and ``load``, which know
    nothing of our headers: they stand in the strings of the file that is handed out.
    """

    def __init__(self, file: str = "") -> None:
        """``file``: the candidate's text, "" where that is handed out as it is."""
        self._pairs: list[tuple[str, str]] = []
        self._puts = bool(file)
        if "kw/" in file and in_python(file) != file:
            for node in _strings(ast.parse(file.encode())):
                whole = [node] if isinstance(node, ast.Constant) else ast.walk(node)
                values = [n.value for n in whole if isinstance(n, ast.Constant)]
                self._pairs += [(v, inlined(v)) for v in values if isinstance(v, str)]
        self._pairs.sort(key=lambda pair: -len(pair[0]))

    def put(self, source: str) -> str:
        """Returns a source with the headers that it includes. Raises ValueError where the file that
        is handed out would not have them.
        """
        if not self._puts or not _INCLUDE.search(source):
            return source
        wanted = written = inlined(source)
        if wanted != source:
            written = source
            for before, after in self._pairs:
                written = written.replace(before, after)
        if written != wanted:
            (name, *_) = _INCLUDE.findall(source)
            raise ValueError(
                f"the line that includes <{name}> is put together when the file runs, where what "
                "is handed out could not have the header: write it in a string of its own that "
                "nothing formats, or use native"
            )
        return wanted


def _places(text: str) -> Iterator[tuple[str, int]]:
    """Gives, for each line of a text with headers, the header that it is of and its number there;
    "" and the number that it would have without them for others. A header may lack lines that the
    sources do not use: of those that are alike the first is meant.
    """
    lines = text.split("\n")
    firsts = {_body(n)[0][0]: n for n in texts()} if "#ifndef KW_" in text else {}
    own = at = 0
    while at < len(lines):
        name = firsts.get(lines[at], "")
        numbers = _numbers(lines[at : _end(lines, at)], *_body(name)) if name else []
        if numbers:
            yield from ((name, n) for n in numbers)
            at += len(numbers)
            continue
        own += 1
        at += 1
        yield "", own


def _end(lines: Sequence[str], at: int) -> int:
    """Returns where the condition ends that begins in a line."""
    depth = 0
    for i in range(at, len(lines)):
        m = _CONDITION.match(lines[i])
        depth += (-1 if m[1] == "endif" else 1) if m else 0
        if depth == 0:
            return i + 1
    return at


def _numbers(lines: Sequence[str], body: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """Returns the numbers of lines in a header, none where they are not lines of it in order."""
    found: list[int] = []
    left = iter(zip(body, numbers, strict=True))
    for line in lines:
        number = next((n for of, n in left if of == line), 0)
        if not number:
            return []
        found.append(number)
    return found


def apart(text: str) -> str:
    """Returns a text without the headers in it: its lines have the numbers that we tell."""
    if "#ifndef KW_" not in text:
        return text
    lines = text.split("\n")
    return "\n".join(line for line, (name, _) in zip(lines, _places(text), strict=True) if not name)


_SAID_AT = re.compile(r"\bsource(\d{1,4})(\.(?:cpp|cu))([:(])(\d{1,9})")
_QUOTED = re.compile(r"^( *\d{1,9})( \|)")


def told_apart(log: str, sources: Sequence[str]) -> str:
    """Returns a compiler's words on sources with headers in them, with the places in the headers
    and in the sources without them.
    """
    places = [list(_places(s)) if "#ifndef KW_" in s else [] for s in sources]
    if not any(places):
        return log
    known: list[tuple[str, int]] = []

    def place(m: re.Match[str]) -> str:
        nonlocal known
        known = places[int(m[1])] if int(m[1]) < len(places) else []
        if not 0 < int(m[4]) <= len(known):
            return m[0]
        name, number = known[int(m[4]) - 1]
        return f"{name or f'source{m[1]}{m[2]}'}{m[3]}{number}"

    def quoted(m: re.Match[str]) -> str:
        number = known[int(m[1]) - 1][1] if 0 < int(m[1]) <= len(known) else int(m[1])
        return f"{number:{len(m[1])}}{m[2]}"

    return "\n".join(_QUOTED.sub(quoted, _SAID_AT.sub(place, line)) for line in log.split("\n"))
