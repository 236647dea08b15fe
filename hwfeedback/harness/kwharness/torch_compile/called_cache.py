"""What a candidate compiles when it is called: kernels in called_languages, and what torch.compile
makes of it where policy allows that. It is compiled by running it once, in a builder's sandbox.

All of them compile when something is first called, with programs (ptxas, a C compiler) that a
candidate's worker may not start. So one worker that may start them runs a forward on a draw that is
used for nothing else; what then lies in their caches, autotuning's choices among it, is given to
the candidate's workers, which find all of it there. It is the candidate's own word, and no other
candidate ever sees it.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import re
import zipfile

from kwharness.torch_compile import called_languages, program_answers

MAX_BYTES = 64 << 20
MAX_LIBRARIES = 256  # that inductor makes of a candidate on a CPU, one for each of its kernels
MAX_LIBRARY_BYTES = 256 << 20  # of all of them
MAX_NAME = 200  # characters
AT_ONCE = 32  # in one message
ANSWERS = "answers.json"  # of programs, in an archive
_LIBRARY = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_NAME = re.compile(r"[a-z]{1,16}(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+")
INDUCTOR = "inductor"  # its folder, by our name


def _folders() -> dict[str, str]:
    """Returns where what is compiled is kept in this process, by names of ours."""
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folders = {language.kind: language.folder() for language in called_languages.LANGUAGES}
    return folders | ({INDUCTOR: inductor} if inductor else {})


def packed() -> bytes:
    """Returns what has been compiled here, but for ``libraries``; b"" where that is nothing.

    Raises ValueError where that is too much.
    """
    out = io.BytesIO()
    size, apart = 0, set(libraries())
    with zipfile.ZipFile(out, "w") as archive:
        for name, path in _files():
            if name in apart:
                continue
            size += os.path.getsize(path)
            if size > MAX_BYTES:
                raise ValueError(f"it has over {MAX_BYTES >> 20} MB of kernels compiled")
            archive.write(path, name)
        archive.writestr(zipfile.ZipInfo(ANSWERS), program_answers.noted())
    return out.getvalue() if size else b""


def libraries() -> dict[str, str]:
    """Returns the paths of the libraries with code for the CPU that were made here, by the names
    that ``link`` takes.
    """
    return {n: p for n, p in _files() if _is_apart(n) and n.endswith(_LIBRARY)}


def names_library(name: str) -> bool:
    """Whether a name is one of ``libraries``: below the folder, with plain letters. It may come
    from a process that runs a candidate.
    """
    fits = len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
    return fits and _is_apart(name) and name.endswith(_LIBRARY)


def link(name: str, fd: int) -> None:
    """Puts one of them where it is looked for."""
    path = _place(name)
    if path:
        os.symlink(f"/proc/self/fd/{fd}", path)


def _files() -> list[tuple[str, str]]:
    """Returns name and path of each file that was made; a link is none of them."""
    found: list[tuple[str, str]] = []
    for name, root in _folders().items():
        for at, _, names in sorted(os.walk(root)):
            paths = [os.path.join(at, n) for n in sorted(names)]
            plain = [p for p in paths if os.path.isfile(p) and not os.path.islink(p)]
            found += [(f"{name}/{os.path.relpath(p, root)}", p) for p in plain]
    return found


def of_inductor(name: str) -> bool:
    """Whether torch.compile has made a file."""
    return name.startswith(f"{INDUCTOR}/")


def _is_apart(name: str) -> bool:
    """Whether its libraries are handed over one by one: on a CPU no process loads one from its own
    memory.
    """
    languages = called_languages.named([name.partition("/")[0]])
    return of_inductor(name) or any(language.on_cores for language in languages)


def _place(name: str) -> str:
    """Returns where a file of that name lies in this process, in a folder that is there; "" for one
    of no folder of ours.
    """
    first, _, within = name.partition("/")
    root = _folders().get(first)
    if root is None:
        return ""
    path = os.path.join(root, within)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def unpack(fd: int, *, forbids: bool = False) -> None:
    """Puts what ``packed`` gave where it is looked for. Libraries are loaded from memory:
    no file that is written here may be. ``forbids``: policy forbids what torch.compile makes, and
    none of it is put there.
    """
    with (
        open(fd, "rb", closefd=False) as f,
        zipfile.ZipFile(f) as archive,
    ):
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename == ANSWERS:
                program_answers.answer(data)
                continue
            path = "" if forbids and of_inductor(info.filename) else _place(info.filename)
            if not path:
                continue
            if not path.endswith(_LIBRARY):
                with open(path, "wb") as out:
                    out.write(data)
                continue
            library = os.memfd_create(os.path.basename(path)[:60])
            with open(library, "wb", closefd=False) as out:
                out.write(data)
            os.symlink(f"/proc/self/fd/{library}", path)
