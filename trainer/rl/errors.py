"""What ends a stage: each error says what is wrong and what to do, and has its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from rl.constants import SHARED

LEAST_ROOM = 64 << 10  # bytes: a disk with less is full


class StageError(Exception):
    """``reason``: one sentence, what and where. ``hint``: one sentence, what to do."""

    exit_code = 1

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class BadInput(StageError):
    """Settings, a model folder or trajectories cannot be used as they are."""

    exit_code = SHARED.exit_codes["bad_input"]


class Stopped(StageError):
    """A guard stopped the stage; the last good checkpoint is kept."""

    exit_code = SHARED.exit_codes["collapsed"]


class Unreachable(StageError):
    """The environment or the sampler died or cannot be reached; the stage can go on later."""

    exit_code = SHARED.exit_codes["unreachable"]


class OutOfMemory(StageError):
    """There was too little memory after the micro-batch had been halved once."""

    exit_code = SHARED.exit_codes["out_of_memory"]


class DiskFull(StageError):
    """A checkpoint or a file could not be written; earlier ones are whole."""

    exit_code = SHARED.exit_codes["disk_full"]


class Interrupted(StageError):
    """Asked to stop: the step was finished and saved."""

    exit_code = SHARED.exit_codes["stopped"]


class Abandoned(StageError):
    """Another process of the stage has ended; that one may have said why."""


def disk_error(error: OSError, path: object) -> StageError:
    """Returns what to say of a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the disk is full: {path} could not be written",
            "free some space and start the stage again: it goes on from the last checkpoint",
        )
    return DiskFull(
        f"{path} could not be written: {error.strerror or error}",
        "mend that and start the stage again: it goes on from the last checkpoint",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises DiskFull where what is done cannot be written to ``path``."""
    try:
        yield
    except StageError:
        raise
    except OSError as error:
        raise disk_error(error, path) from error
    except Exception as error:
        # safetensors and PyTorch have errors of their own, which may not say why.
        if no_room(error, path):
            raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path) from error
        raise


def no_room(error: Exception, path: Path) -> bool:
    """Reports whether an error is of a full disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if "No space left" in str(error) or "os error 28" in str(error):
        return True
    there = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
    return shutil.disk_usage(there).free < LEAST_ROOM


def out_of_memory(error: BaseException) -> bool:
    """Reports whether there was too little memory, of a GPU or of the machine."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "not enough memory" in str(error)
    )
