"""What a call costs in work that can be counted: how long it takes is a benchmark's
(bench/call_cost.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(call: Callable[[], object]) -> int:
    """Returns how many instructions of Python's a call runs, once what is made first is there."""
    counted = 0

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return step

    call()
    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return counted
