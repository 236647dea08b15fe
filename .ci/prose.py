#!/usr/bin/env python3
"""Lists the sentences of README.md, CHANGELOG.md and docs/ that have over 25 words: make lint.

Code, tables and headings are left out. Of a link its text counts, and inline code counts as one
word. LONG is how many such sentences there are. It only shrinks: one more fails, and one fewer
fails too, until the new number is written down here.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
WORDS = 25
LONG = 0

FENCE = re.compile(r"^ *(```+|~~~+)")
APART = re.compile(r"^ *(\||#|<!--|---+$)")  # tables, headings, comments, rules
ITEM = re.compile(r"^ *([-*+]|\d+\.) +")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"!?\[([^][]*)\]\([^()]*\)")
# A full stop that is no ellipsis, what closes after it, and a space.
END = re.compile(r"(?<!\.)[.!?][\"')*\u201d]*\s+")
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "cf.", "arXiv.")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields each paragraph and each item of a list: the line it begins in, and its text."""
    fence, begin, held = "", 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = FENCE.match(line)
        apart = bool(fence or mark or not line.strip() or APART.match(line))
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip() == fence:
            fence = ""
        item = None if apart else ITEM.match(line)
        if held and (apart or item):
            yield begin, " ".join(held)
            held = []
        if not apart:
            begin = begin if held else number
            held.append((line[item.end() :] if item else line).strip())


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yields each sentence of a page, and the line that its paragraph begins in."""
    for number, paragraph in paragraphs(text):
        plain = LINK.sub(r"\1", CODE.sub("Code", paragraph))
        begin = 0
        for end in END.finditer(plain):
            sentence = plain[begin : end.end()].strip()
            if not sentence.endswith(ABBREVIATIONS):
                yield number, sentence
                begin = end.end()
        yield number, plain[begin:].strip()


def words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def pages() -> list[pathlib.Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def long_ones(page: pathlib.Path) -> list[tuple[int, int, str]]:
    """Returns of a page's long sentences the line, how many words they have, and their text."""
    found = [(n, words(s), s) for n, s in sentences(page.read_text(encoding="utf-8"))]
    return [one for one in found if one[1] > WORDS]


def verdict(found: int, allowed: int) -> str:
    """Returns what is wrong with so many long sentences; "" where nothing is."""
    if found > allowed:
        return f"{found} sentences have over {WORDS} words; {allowed} may: shorten them"
    if found < allowed:
        return f"{found} sentences have over {WORDS} words: write LONG = {found} in .ci/prose.py"
    return ""


def main(arguments: list[str]) -> int:
    counts = {page: long_ones(page) for page in pages()}
    found = sum(map(len, counts.values()))
    wrong = verdict(found, LONG)
    if "--pages" in arguments:
        for page, long in sorted(counts.items(), key=lambda item: -len(item[1])):
            print(f"{len(long):5} {page.relative_to(ROOT)}")
    elif wrong or "--all" in arguments:
        for page, long in counts.items():
            for line, count, sentence in long:
                print(f"{page.relative_to(ROOT)}:{line}: {count} words: {sentence[:90]}")
    print(wrong or f"prose: {found} sentences have over {WORDS} words")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
