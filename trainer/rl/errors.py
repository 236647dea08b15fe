"""What ends a stage: each error says what is wrong and what to do, and has its exit code."""

from __future__ import annotations

import errno


class StageError(Exception):
    """``reason``: one sentence, what and where. ``hint``: one sentence, what to do."""

    exit_code = 1

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class BadInput(StageError):
    """Settings, a model folder or trajectories cannot be used as they are."""

    exit_code = 2


class Stopped(StageError):
    """A guard stopped the stage; the last good checkpoint is kept."""

    exit_code = 3


class Unreachable(StageError):
    """The environment or the sampler died or cannot be reached; the stage can go on later."""

    exit_code = 4


class OutOfMemory(StageError):
    """There was too little memory after the micro-batch had been halved once."""

    exit_code = 5


class DiskFull(StageError):
    """A checkpoint or a file could not be written; earlier ones are whole."""

    exit_code = 6


class Interrupted(StageError):
    """Asked to stop: the step was finished and saved."""

    exit_code = 7


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
