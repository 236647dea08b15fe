"""What a candidate's process hands over so that files of its own can be built elsewhere: the
sources that ``load`` names, and every header that these, or the sources of ``load_inline``, include
from its own folders. What lies in the system's, the builder has itself.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MAX_FILES = 200
MAX_CHARACTERS = 4 << 20
HOST, DEVICE = (".cpp", ".cc", ".cxx", ".c"), (".cu",)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
_INCLUDES = re.compile(r"(?:-I|-isystem=?|-iquote=?)(/.*)")


@dataclass
class Files:
    """Texts by their paths below one folder, in which they lie to each other as they did."""

    units: list[str] = field(default_factory=list)  # what is compiled, those of CUDA last
    texts: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)  # of them that headers are sought in
    outside: list[str] = field(default_factory=list)  # and others, the system's

    def split(self) -> tuple[list[str], list[str]]:
        """Takes out the units, and returns the texts of those of C++ and those of CUDA."""
        out: tuple[list[str], list[str]] = ([], [])
        for name in self.units:
            out[name.endswith(DEVICE)].append(self.texts.pop(name))
        return out


def gathered(
    units: Sequence[str], include_paths: Sequence[str], inline: Iterable[str] = ()
) -> Files:
    """Gathers files. ``inline``: texts that lie in none. Raises ValueError and OSError."""
    search = [os.path.realpath(p) for p in include_paths]
    own = [p for p in search if _own(p)]
    read: dict[str, str] = {}
    waiting: list[tuple[str, str]] = []  # a folder and a text in it
    paths = list(dict.fromkeys(os.path.realpath(u) for u in units))
    for path in paths:
        if not path.endswith((*HOST, *DEVICE)):
            raise ValueError(f"load takes C++ and CUDA sources, not {os.path.basename(path)!r:.80}")
        waiting.append((os.path.dirname(path), _read(path, read)))
    waiting += [("", text) for text in inline]
    while waiting:
        folder, text = waiting.pop()
        for quoted, angled in _INCLUDE.findall(text):
            places = [folder, *search] if quoted and folder else search
            found = _found(quoted or angled, places)
            if found and found not in read and _own(found):
                waiting.append((os.path.dirname(found), _read(found, read)))
    folders = [*map(os.path.dirname, read), *own]
    root = os.path.commonpath(folders) if folders else ""
    named = {p: os.path.relpath(p, root) for p in (*read, *own)}
    paths.sort(key=lambda p: p.endswith(DEVICE))
    return Files(
        [named[p] for p in paths],
        {named[p]: text for p, text in read.items()},
        [named[p] for p in own],
        [p for p in search if not _own(p)],
    )


def included(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns flags without those that name own folders of headers, and these folders."""
    words = [w for f in flags for w in f.split()]
    found = [m[1] for m in map(_INCLUDES.fullmatch, words) if m and _own(os.path.realpath(m[1]))]
    if not found:
        return list(flags), []
    return [w for w in words if not (m := _INCLUDES.fullmatch(w)) or m[1] not in found], found


def _own(path: str) -> bool:
    """Whether a path is one that this process may have written: no builder sees it."""
    roots = {os.path.realpath(p) for p in ("/tmp", "/dev/shm", tempfile.gettempdir())}
    return any(path == r or path.startswith(r + "/") for r in roots)


def _found(name: str, folders: Sequence[str]) -> str:
    for folder in folders:
        path = os.path.realpath(os.path.join(folder, name))
        if os.path.isfile(path):
            return path
    return ""


def _read(path: str, read: dict[str, str]) -> str:
    with open(path, encoding="utf-8") as f:
        read[path] = f.read(MAX_CHARACTERS + 1)
    if len(read) > MAX_FILES or sum(map(len, read.values())) > MAX_CHARACTERS:
        raise ValueError(
            f"the files to build are over {MAX_FILES}, or over {MAX_CHARACTERS} characters long"
        )
    return read[path]
