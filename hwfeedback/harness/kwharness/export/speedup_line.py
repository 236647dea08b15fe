"""The line of a handed-out file's docstring that says its speedup.

A file is verified and timed with UNKNOWN in that place: only then are the figures there. They are
written in afterwards, as text within the docstring, and no other byte changes. The certificate's
digest is of the file with the figures. A candidate that may read its own text could tell the two
apart, so its file has KEPT, and stays as it was verified. Names tell that: who hides them has other
ways to tell a user from us.
"""

from __future__ import annotations

import re

from kwharness.base.requests import Speedup

UNKNOWN = "Speedup: its certificate has it, with its interval."
KEPT = "Speedup: its certificate has it. This file may read its own text, which stays as verified."
# How a program in Python comes by its own text, or its docstring.
_READS_ITSELF = re.compile(
    r"\b(?:__doc__|__file__|__spec__|__loader__|inspect|linecache|getsource|co_filename|co_consts)\b"
    r"|(?<![.\w])(?:open|eval|exec)\s*\("
)


def first(candidate: str) -> str:
    """Returns the line with which a candidate is verified."""
    return KEPT if _READS_ITSELF.search(candidate) else UNKNOWN


def stated(text: str, speedup: Speedup | None) -> str:
    """Returns a file with the speedup in the place of UNKNOWN, if it has that."""
    if speedup is None:
        return text
    against = re.sub(r"[^\w .:@+-]", "?", speedup.against)
    line = (
        f"Speedup: {speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] against {against}, "
        "the fastest baseline (95 % interval)."
    )
    return text.replace(f"\n{UNKNOWN}\n", f"\n{line}\n", 1)
