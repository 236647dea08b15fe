"""Builds the allocator of large tensors (allocator.cpp) and restarts a process with it.

What was freed keeps its pages, and a request of a size gets the block that was freed last: whether
a call touches new pages, and whether its output is in the cache, is then no accident.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from kwharness.base.constants import SHARED
from kwharness.machine import toolchain

FOLDER = SHARED.allocator_env
SOURCE = pathlib.Path(__file__).with_name("allocator.cpp")
FLAGS = ("-O2", "-fPIC", "-shared", "-fno-builtin-malloc")
_PRELOAD = "LD_PRELOAD"
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _PERTURB = -1, -2, -4, -6  # malloc.h
_HUGE_PAGES, _SMALL_PAGES, _COLLAPSE = 14, 15, 25  # madvise(2), the last from Linux 6.1 on
_HUGE = 2 << 20  # bytes of a huge page
_PAD = 128 << 10  # glibc's own
_POISON = 0x7F  # four of them are 3.4e38, and nobody's expected value


def preload() -> None:
    """Restarts this process with the allocator where it is wanted and can be built.

    Call it before anything is imported that takes long.
    """
    folder = os.environ.pop(FOLDER, "")
    if os.environ.pop(_PRELOAD, "") or not folder:
        return
    built = _built(pathlib.Path(folder))
    if built:
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, _PRELOAD: built})
    sys.stderr.write("the allocator cannot be built here: times of large tensors will scatter\n")


def _built(folder: pathlib.Path) -> str:
    """Returns the path of the object, or "" where it can't be built."""
    if not toolchain.compiler():
        return ""
    key = toolchain.key(SOURCE.read_text(), toolchain.compiler_version(), *FLAGS)[:24]
    built = folder / f"allocator-{key}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
        if seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            return ""  # somebody else may have put an object there
        if built.exists():
            return str(built)
        handle, made = tempfile.mkstemp(dir=folder, suffix=".so")
        os.close(handle)
        subprocess.run(
            [toolchain.compiler(), *FLAGS, "-o", made, str(SOURCE)],
            env={**toolchain.trusted_environment(), "TMPDIR": str(folder)},
            capture_output=True,
            timeout=120,
            check=True,
        )
        # A C library that lacks what it rests on could start nothing with it.
        trial = {**toolchain.trusted_environment(), _PRELOAD: made}
        subprocess.run([sys.executable, "-Ic", ""], env=trial, timeout=60, check=True)
        os.replace(made, built)
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(built)


def keep_freed_memory() -> None:
    """Has the C library keep what is freed, too: small tensors, and what kernels allocate."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)


def release() -> None:
    """Gives memory that is free, and kept, back to the system."""
    libc = ctypes.CDLL(None)
    for name in ("kernelwright_release", "malloc_trim"):
        if hasattr(libc, name):
            getattr(libc, name)(0)


def poison(on: bool) -> None:
    """Has memory hold a byte pattern when it is allocated, so that nothing is found in it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_PERTURB, _POISON ^ 0xFF if on else 0)  # it fills with the complement
    if hasattr(libc, "kernelwright_poison"):
        at = ctypes.c_size_t.in_dll(libc, "kernelwright_poison")
        at.value = 0x100 + _POISON if on else 0


def _advise(pages: range, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(pages.start), ctypes.c_size_t(len(pages)), advice)


def _whole(begin: int, end: int) -> range:
    """The bytes of the huge pages that fit in there."""
    return range(-(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE)


@contextlib.contextmanager
def heap_in_huge_pages(size: int) -> Iterator[None]:
    """Has so much of what the C library gives out meanwhile lie in huge pages, where they are for
    those who ask: a fork copies one entry of a page table for each, where it would copy 512, and
    what they hold is zeroed at once. From then on large blocks come by mmap, whatever was freed,
    except after ``keep_freed_memory``.
    """
    libc = ctypes.CDLL(None)
    asks = "[madvise]" in _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if not asks or not hasattr(libc, "mallopt") or not hasattr(libc, "sbrk"):
        yield
        return
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    before = libc.sbrk(0)
    libc.mallopt(_TOP_PAD, size)
    taken: list[int | None] = []
    while libc.sbrk(0) == before and len(taken) << 16 < size:  # until it asks for more
        taken.append(libc.malloc(1 << 16))
    for at in taken:
        libc.free(ctypes.c_void_p(at))
    heap = _whole(before, libc.sbrk(0))
    _advise(heap, _HUGE_PAGES)
    try:
        yield
    finally:
        libc.mallopt(_TOP_PAD, _PAD)
        _advise(heap, _SMALL_PAGES)  # for what comes to it from now on


def collapse(seconds: float) -> int:
    """Puts what this process has of its own into huge pages, the largest areas first, for so long,
    and returns how many it asked for. Does nothing where the kernel can't.
    """
    end = time.monotonic() + seconds
    areas = []
    for line in _read("/proc/self/maps").splitlines():
        where, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            areas.append(_whole(*(int(x, 16) for x in where.split("-"))))
    asked = 0
    for area in sorted(areas, key=len, reverse=True):
        for at in range(area.start, area.stop, _HUGE):
            if time.monotonic() >= end:
                return asked
            _advise(range(at, at + _HUGE), _COLLAPSE)
            asked += 1
    return asked


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""
