"""Reads the memory of another process, process_vm_readv(2), where the system allows it."""

from __future__ import annotations

import ctypes
import errno


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_parts = (ctypes.POINTER(_Part), ctypes.c_ulong)
_libc.process_vm_readv.argtypes = (ctypes.c_int, *_parts, *_parts, ctypes.c_ulong)


def fetch(pid: int, address: int, to: int, size: int) -> int:
    """Copies bytes at an address of another process to an address of this one.

    Returns 0, or the number of the error: EFAULT where not all of it is memory that can be read.
    """
    while size > 0:
        here, there = _Part(to, size), _Part(address, size)
        got = _libc.process_vm_readv(pid, here, 1, there, 1, 0)
        if got <= 0:
            return ctypes.get_errno() if got else errno.EFAULT
        address, to, size = address + got, to + got, size - got
    return 0


def readable(pid: int) -> bool:
    """Whether this process may read that one's memory."""
    # Nothing lies at an address this low: only who may read is told so.
    byte = ctypes.create_string_buffer(1)
    return fetch(pid, 64, ctypes.addressof(byte), 1) in (0, errno.EFAULT)
