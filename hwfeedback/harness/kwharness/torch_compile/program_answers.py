"""What torch.compile asks other programs while it compiles a candidate: which compiler there is,
and which version.

A candidate's worker may start no program. What torch.compile makes of a candidate is compiled by
one worker that may (called_cache.py), which notes what programs answered; in the others the same
questions get the same answers. It is the word of the candidate's own process: no other candidate
ever gets it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import Any, TypedDict

MAX_ANSWER = 1 << 16  # bytes that a program printed: what answers more was asked for more
MAX_ANSWERS = 100


class Answer(TypedDict):
    """What a program answered."""

    code: int  # its exit status
    stdout: str  # in base64
    stderr: str  # likewise


_noted: dict[str, Answer] = {}


def note() -> None:
    """Notes from here on what programs answer."""
    real = subprocess.run

    def run(command: Any, **more: Any) -> Any:
        done = real(command, **(more | {"check": False}))
        if len(_noted) < MAX_ANSWERS and (key := _key(command)):
            streams = _bytes(done.stdout), _bytes(done.stderr)
            if all(len(b) <= MAX_ANSWER for b in streams):
                out, err = (base64.b64encode(b).decode() for b in streams)
                _noted[key] = {"code": done.returncode, "stdout": out, "stderr": err}
        return _checked(done, bool(more.get("check")))

    subprocess.run = run  # type: ignore[assignment]


def noted() -> bytes:
    """Returns what was noted, for ``answer``."""
    return json.dumps(_noted).encode()


def answer(given: bytes) -> None:
    """Answers from here on what was noted; any other program is started, or is not."""
    known: dict[str, Answer] = json.loads(given)
    if not known:
        return
    real = subprocess.run

    def run(command: Any, **more: Any) -> Any:
        found = known.get(_key(command))
        if found is None:
            return real(command, **more)
        streams: list[Any] = [base64.b64decode(s) for s in (found["stdout"], found["stderr"])]
        if any(more.get(n) for n in ("text", "universal_newlines", "encoding", "errors")):
            streams = [b.decode(errors="replace") for b in streams]
        done = subprocess.CompletedProcess(command, int(found["code"]), *streams)
        return _checked(done, bool(more.get("check")))

    subprocess.run = run  # type: ignore[assignment]


def _key(command: Any) -> str:
    """Names a command, "" for one that is not noted."""
    given = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
    words = [os.fspath(w) if isinstance(w, os.PathLike) else w for w in given]
    return json.dumps(words) if all(isinstance(w, str) for w in words) else ""


def _bytes(said: Any) -> bytes:
    if said is None:
        return b""
    return said if isinstance(said, bytes) else str(said).encode()


def _checked(done: Any, check: bool) -> Any:
    if check:
        done.check_returncode()
    return done
