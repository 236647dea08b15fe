"""Ends a process that is still starting when whoever started it goes.

Importing torch takes seconds, in which nothing reads the connection to whoever started this one.
The kernel does it instead: it kills the process group when the connection ends. Unlike the parent's
death signal that goes by the other process, not by the thread of it that started this one, and it
holds from the call on, also for what is executed in its place.

It imports little: what comes before the call is not covered but for the connection being looked at.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

CONTROL_FD = 3  # the connection to whoever started this process


def follow(fd: int) -> None:
    """Has this process killed as soon as the peer of the connected socket ``fd`` is gone; with its
    group, where it leads one.

    Call it before anything that takes long. Nothing may be sent to the socket before ``lead``: that
    would kill it too.
    """
    pid = os.getpid()
    fcntl.fcntl(fd, fcntl.F_SETOWN, -pid if os.getpgrp() == pid else pid)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):  # it was gone before
        raise SystemExit(0)


def lead(fd: int) -> None:
    """Undoes ``follow``: from now on this process reads the connection itself."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_ASYNC)
