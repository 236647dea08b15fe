"""Leaves out of our headers what a file's sources do not use, so that an exported file can be read.
What is evaluated has the same text.

A declaration stays where its name is a word of the source or of another that stays: all overloads
and specialisations of a name stay together, and so does what has no name that can be told. It is
for headers as ours are written: one declaration begins at the beginning of a line.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Collection, Iterator, Sequence

from kwharness.build import headers, native_calls

_WORD = re.compile(r"[A-Za-z_]\w*")
_REMARK = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')
_BEGINS = re.compile(r"#\s*(?:if|ifdef|ifndef)\b")
_TURNS = re.compile(r"#\s*(?:else|elif)\b")
_ENDS = re.compile(r"#\s*endif\b")
_MACRO = re.compile(r"#\s*(?:define|undef)\s+(\w+)")
_TEMPLATE = re.compile(r"template <[^\n]*>\n")
_TYPE = re.compile(r"(?:struct|class|union|enum)\s+(?:alignas\([^\n]*\)\s+)?(\w+)\b[^();]*[{;]")
_VALUE = re.compile(r"(?:static\s+|inline\s+)*constexpr\s+[\w\s]+?(\w+)\s*=")
_FUNCTION = re.compile(r"(?:[\w:<>*&]+\s+)+(\w+)\(")
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\([^\n]*?\)\)")
_GPU = "#ifdef __CUDACC__"
_DEFINES = re.compile(r"""["']-D""")  # a flag
_GUARD = re.compile(r"\bKW_\w+_H\b")
_ASKED = re.compile(r"#ifdef (KW_\w+)$")  # a name that a source may define


class Unread(Exception):
    """A header that is not written as ours are."""


@dataclasses.dataclass
class _Part:
    """A declaration, or a line of the preprocessor. Without a name it stays."""

    text: str
    name: str = ""

    @functools.cached_property
    def words(self) -> set[str]:
        return set(_WORD.findall(_REMARK.sub(" ", self.text)))


@dataclasses.dataclass
class _Block:
    """What stands between lines: of a condition with its branches, or of a namespace."""

    branches: list[tuple[str, list[_Part | _Block]]]  # each with its first line
    end: str

    def parts(self) -> Iterator[_Part]:
        for _, items in self.branches:
            for item in items:
                yield from item.parts() if isinstance(item, _Block) else (item,)

    def decide(self, language: str, source: str) -> None:
        """Puts what a language has in the place of the conditions that tell languages apart, and
        leaves out what a name of ours asks for that the source does not have.
        """
        for at, (first, items) in enumerate(self.branches):
            now: list[_Part | _Block] = []
            for item in items:
                if not isinstance(item, _Block):
                    now.append(item)
                    continue
                item.decide(language, source)
                condition = item.branches[0][0]
                asked = _ASKED.match(condition)
                if condition == _GPU and len(item.branches) <= 2:
                    chosen = item.branches[0 if language == "cuda" else 1 :][:1]
                    now += chosen[0][1] if chosen else []
                elif not (asked and len(item.branches) == 1 and asked[1] not in source):
                    now.append(item)
            self.branches[at] = first, now

    def written(self, kept: Collection[int]) -> list[str]:
        """Returns the lines of what is kept: none where nothing is."""
        lines: list[str] = []
        some = False
        for first, items in self.branches:
            lines += [first] if first else []
            for item in items:
                of = item.written(kept) if isinstance(item, _Block) else [item.text]
                if of and (isinstance(item, _Block) or id(item) in kept):
                    lines += of
                    some = True
        return [*lines, *([self.end] if self.end else [])] if some else []


def of_file(text: str) -> headers.Table:
    """Returns our headers for a candidate's file: those that its strings name, each with what the
    file's sources need of it. It is all of it where a source is not a string that is given to
    ``native`` as it is. Raises SyntaxError for what is not Python.
    """
    named = headers.table(headers.mentioned(text))
    if not named or "cpp_extension" in text or _DEFINES.search(text):
        return named
    tree = ast.parse(text.encode())
    language, sources = native_calls.sources(tree, native_calls.names(native_calls.imports(tree)))
    return table("\n".join(sources), language, named) if sources else named


def table(source: str, language: str, whole: headers.Table) -> headers.Table:
    """Returns headers with what a source in "cpp" or "cuda" needs of them: all where names are put
    together, or where it asks itself for what our conditions ask for.
    """
    if "##" in source or "__CUDACC__" in source or _GUARD.search(source):
        return whole
    try:
        read = {name: _Reader(text).header(language, source) for name, (_, text) in whole.items()}
    except Unread:
        return whole
    words = set(_WORD.findall(source))
    waiting = [part for _, block, _ in read.values() for part in block.parts()]
    kept: set[int] = set()
    while found := [p for p in waiting if id(p) not in kept and (not p.name or p.name in words)]:
        kept.update(id(p) for p in found)
        words.update(*(p.words for p in found))
    lines = {name: block.written(kept) for name, (_, block, _) in read.items()}
    texts = {n: "\n".join([*read[n][0], *of, read[n][2]]) if of else "" for n, of in lines.items()}
    return {n: ([m for m in needs if texts[m]], texts[n]) for n, (needs, _) in whole.items()}


class _Reader:
    """Reads a header, line by line."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0

    def header(self, language: str, source: str) -> tuple[Sequence[str], _Block, str]:
        """Returns the lines that guard a header, what is between them, and the last line. Raises
        Unread.
        """
        guard, end = self._lines[:2], self._lines.pop()
        if not (guard[0].startswith("#ifndef KW_") and end == "#endif"):
            raise Unread("no guard")
        self._at = 2
        block = _Block([("", self._items())], "")
        if self._at != len(self._lines):
            raise Unread("something ends that does not begin")
        block.decide(language, source)
        return guard, block, end

    def _line(self) -> str:
        if self._at == len(self._lines):
            raise Unread("it ends too early")
        self._at += 1
        return self._lines[self._at - 1]

    def _items(self) -> list[_Part | _Block]:
        items: list[_Part | _Block] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if _TURNS.match(line) or _ENDS.match(line) or line.startswith("}"):
                break
            items.append(self._item())
        return items

    def _item(self) -> _Part | _Block:
        line = self._lines[self._at]
        if line.startswith("namespace"):
            self._at += 1
            block = _Block([(line, self._items())], self._line())
            if not block.end.startswith("}  // namespace"):
                raise Unread("a namespace without its end")
            return block
        if _BEGINS.match(line):
            self._at += 1
            block = _Block([(line, self._items())], "")
            while _TURNS.match(turn := self._line()):
                block.branches.append((turn, self._items()))
            if not _ENDS.match(turn):
                raise Unread("a condition without its end")
            block.end = turn
            return block
        if line.startswith("#"):
            self._at += 1
            if line.endswith("\\"):
                raise Unread("a directive of several lines")
            macro = _MACRO.match(line)
            return _Part(line, macro[1] if macro else "")
        return self._declaration()

    def _declaration(self) -> _Part:
        lines: list[str] = []
        depth = 0
        while True:
            line = self._line()
            lines.append(line)
            if line.startswith("#"):
                if depth == 0:
                    raise Unread("a directive before a declaration has begun")
                continue
            code = _REMARK.sub(" ", line).rstrip()
            depth += sum(map(code.count, "({[")) - sum(map(code.count, ")}]"))
            if depth == 0 and code.endswith((";", "}")):
                return _Part("\n".join(lines), _name("\n".join(lines)))


def _name(text: str) -> str:
    """Returns the name of a declaration, "" where that is not plain."""
    code = re.sub(r"^\s*\n", "", _REMARK.sub("", text), flags=re.M)
    code = _ATTRIBUTE.sub("", _TEMPLATE.sub("", code, count=1))
    m = _TYPE.match(code) or _VALUE.match(code) or _FUNCTION.match(code)
    return m[1] if m else ""
