"""What a worker tries that is not its business: calls that its filter denies, files of others.

A filter of ``seccomp`` asks whoever holds its listener about such calls (seccomp_unotify(2)); the
fork server answers from its loop. Nothing rests on what is heard here: a call is denied, and a file
is not there, whether or not anybody listens. It says what a candidate was after.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import posixpath
import re
import select
import struct
from collections.abc import Sequence

from kwharness.base import process_memory
from kwharness.process import policy, seccomp

_RECV, _SEND, _GO_ON = 0xC0502100, 0xC0182101, 1
_VALID = (0x40082102, 0x80082102)  # the second one before Linux 5.17
# After so many nobody listens any more: the kernel then refuses by itself (ENOSYS).
MOST_REFUSED = 1000
MOST_FILES = 20  # that are kept by name
LONGEST = 4096  # a path, with its end
# Where everybody looks for something: what is there is the same on every machine of its kind, or
# a worker's own.
_COMMON = (
    "/etc",
    "/sys",
    "/tmp",
    "/dev/shm",
    "/dev/fd",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
)
# And what nobody who computes asks for, although it lies there.
_SECRET = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh")
_WRITABLE = ("/tmp", "/dev", "/proc")
TO_CHANGE = " (to change it)"
_AT_FDCWD = -100


class Listener:
    """Answers and counts, for the fork server's loop: ``fd`` becomes readable with each call."""

    def __init__(self, fd: int, settings: policy.Settings) -> None:
        self.fd = fd
        self.refused: dict[str, int] = {}  # system calls by name
        self.files: dict[str, int] = {}  # what it would open and is not its own, by path
        self._names, self._opens = seccomp.listened()
        visible = [*policy.SYSTEM_PATHS, *policy.python_paths(), *settings.read_only]
        self._visible = {posixpath.normpath(p) for p in visible if p}
        self._visible |= {os.path.realpath(p) for p in self._visible}
        self._visible |= {*_COMMON, *(f"/dev/{name}" for name in settings.devices())}
        self._above = {"/"} | {a for p in self._visible for a in _above(p)}

    def hear(self) -> bool:
        """Takes one call, if one waits. Returns whether there may be more."""
        waits = select.poll()
        waits.register(self.fd, select.POLLIN)
        found = waits.poll(0)
        if not found:
            return True  # taking one would wait for it, and the server with it
        if not found[0][1] & select.POLLIN:
            return False
        notice = bytearray(80)
        try:
            fcntl.ioctl(self.fd, _RECV, notice)
        except OSError as e:
            return e.errno in (errno.ENOENT, errno.EINTR)  # the caller is gone, or comes again
        ident, pid, _flags, number = struct.unpack_from("=QIIi", notice)
        arguments = struct.unpack_from("=6Q", notice, 32)
        go_on = struct.pack("=QqiI", ident, 0, 0, _GO_ON)
        no = struct.pack("=QqiI", ident, 0, -errno.EPERM, 0)
        name = self._names.get(number, str(number))
        opened = self._opens.get(number)
        if opened is not None:
            for at, below in opened:
                path = self._path(ident, pid, arguments, at, below)
                self._opened(pid, path, _changes(name, arguments))
        else:
            self.refused[name] = self.refused.get(name, 0) + 1
        # Linux before 5.5 lets nothing go on.
        for answer in [go_on, no] if opened is not None or name in seccomp.NAMED else [no]:
            with contextlib.suppress(OSError):  # or the caller is gone
                fcntl.ioctl(self.fd, _SEND, answer)
                break
        return sum(self.refused.values()) < MOST_REFUSED

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _path(self, ident: int, pid: int, arguments: Sequence[int], at: int, below: int) -> str:
        """Returns the absolute path that a call is given, "" where it cannot be known."""
        text = _text_of(pid, arguments[at])
        if not text or not self._waits(ident):  # or it was somebody else's memory
            return ""
        if text.startswith(b"/"):
            return posixpath.normpath(b"/" + text.lstrip(b"/")).decode(errors="replace")
        folder = _AT_FDCWD
        if below >= 0:
            folder = ctypes.c_int(arguments[below] & 0xFFFFFFFF).value
        try:
            link = "cwd" if folder == _AT_FDCWD else f"fd/{folder}"
            base = os.fsencode(os.readlink(f"/proc/{pid}/{link}"))
        except OSError:
            base = b"/tmp"
        if not base.startswith(b"/"):
            return ""
        return posixpath.normpath(posixpath.join(base, text)).decode(errors="replace")

    def _waits(self, ident: int) -> bool:
        for request in _VALID:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.fd, request, struct.pack("=Q", ident))
                return True
        return False

    def _opened(self, pid: int, path: str, writes: bool) -> None:
        if not path or self._own(pid, path, writes):
            return
        path += TO_CHANGE if writes else ""
        if path in self.files or len(self.files) < MOST_FILES:
            self.files[path] = self.files.get(path, 0) + 1

    def _own(self, pid: int, path: str, writes: bool) -> bool:
        """Whether a worker may well open this. ``writes``: it would change it."""
        if _below(path, _SECRET) or (writes and not _below(path, _WRITABLE)):
            return False
        process = re.match(r"/proc/(\d+)(/|$)", path)
        if process is not None:
            # Its own number is 1, or what ours is where it has no namespace.
            return int(process[1]) in (1, pid) or os.path.exists(f"/proc/{pid}/task/{process[1]}")
        # Whoever asks for a GPU asks for all that there might be.
        if path.startswith(("/proc/", "/dev/nvidia")):
            return True
        return path in self._above or _below(path, self._visible)


def _below(path: str, folders: Sequence[str] | set[str]) -> bool:
    return any(path == f or path.startswith(f"{f}/") for f in folders)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(2, len(parts))]


def _changes(name: str, arguments: Sequence[int]) -> bool:
    """Whether a call changes its file, or opens it to. openat2 says it in memory."""
    flags = {"open": 1, "openat": 2}.get(name)
    return name != "openat2" if flags is None else bool(arguments[flags] & seccomp.WRITES)


def _text_of(pid: int, address: int) -> bytes:
    """Returns the text at an address of another process, b"" where it cannot be read."""
    buffer = ctypes.create_string_buffer(LONGEST)
    # Up to a page's end first: the next one may not be there.
    page = os.sysconf("SC_PAGE_SIZE")
    have = 0
    while have < LONGEST:
        room = min(LONGEST - have, page - (address + have) % page)
        if process_memory.fetch(pid, address + have, ctypes.addressof(buffer) + have, room):
            return b""
        end = buffer.raw.find(b"\0", have, have + room)
        if end >= 0:
            return buffer.raw[:end]
        have += room
    return b""
