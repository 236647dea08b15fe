"""Keeps the bytecode of the harness, which lies where nothing is written: compiling its text takes
half a second of each start.

It imports nothing of ours: what is imported after it is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

FOLDER = "KERNELWRIGHT_BYTECODE"  # environment: where it is kept; none: nowhere


def keep() -> None:
    """Has the bytecode of what this process imports kept, until ``done``."""
    folder = os.environ.get(FOLDER, "")
    try:
        if not folder:
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.stat(folder)
    except OSError:
        return
    if seen.st_uid == os.getuid() and not seen.st_mode & 0o022:  # else it may be somebody else's
        sys.pycache_prefix, sys.dont_write_bytecode = folder, False


def done() -> None:
    """The rest is imported as it lies."""
    os.environ.pop(FOLDER, None)
    sys.pycache_prefix, sys.dont_write_bytecode = None, True


@contextlib.contextmanager
def of_others() -> Iterator[None]:
    """While packages are imported that have bytecode of their own beside them."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = None, True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
