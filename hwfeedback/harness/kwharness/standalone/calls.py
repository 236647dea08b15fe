"""What an exported file is asked, and what is seen of its calls."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kwharness.base.breaks import Break
from kwharness.base.carried import NOTHING, Carried
from kwharness.base.configs import Place
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.standalone.sanitizers import Check


@dataclass(frozen=True)
class Use:
    """How its users use it. ``constructor`` and ``forward``: the names of what these are given,
    none where they have no names for it. ``constructed``: of each weight what tells the content
    that it has without a load; ``rebuilt``: the same of what the reference's constructor makes, if
    that stands in the file; ``takes``: the method of its own that takes weights, if it has one;
    ``ways``: whether all are tried.
    """

    constructor: Sequence[str] = ()
    forward: Sequence[str] = ()
    constructed: dict[str, str] = field(default_factory=dict)
    rebuilt: dict[str, str] = field(default_factory=dict)
    takes: str = ""
    ways: bool = False


@dataclass(frozen=True)
class Call:
    """What the file is given, and what of it comes back: tensors like ``outputs``, which need no
    content.
    """

    init: tuple[Any, Sequence[torch.Tensor]]
    state: tuple[Sequence[str], Sequence[torch.Tensor]]
    inputs: tuple[Any, Sequence[torch.Tensor]]
    outputs: tuple[Any, Sequence[torch.Tensor]]
    eval_mode: bool
    threads: int
    place: Place = field(default_factory=Place)  # where it runs
    orders: Sequence[Sequence[int]] = ()  # of inputs: see tensors.layout_of
    seed: int = CONSTRUCTION_SEED  # under which it is constructed
    breaks: Sequence[Break] = ()  # see construction.Breaks
    own: bool = False  # whether weights go by its own names, and not as a state_dict
    carried: Carried = NOTHING  # behind inputs and outputs
    use: Use = Use()


@dataclass(frozen=True)
class Launch:
    """One kind of what a forward has the GPU do: a kernel, or a copy."""

    name: str
    count: int
    ms: float  # of all of them together, median over forwards
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass
class Looked:
    """What was seen of it. ``span_ms``: what the profiler sees of a forward, from where the first
    kernel starts until the last has ended, the L2 being empty of it; 0 where it sees nothing.
    """

    launches: list[Launch] = field(default_factory=list)
    span_ms: float = 0.0
    checks: list[Check] = field(default_factory=list)
    checks_s: float = 0.0  # that the sanitizers took, all of them at once


class Broken(Exception):
    """The file does not do by itself what it did in the harness. ``log`` is what it printed."""

    def __init__(self, message: str, log: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.log = log
        self.late = late

    @property
    def out_of_memory(self) -> bool:
        return "out of memory" in str(self)


def lacking(form: str) -> str:
    """Returns what a file of this form needs and this environment does not have, or ""."""
    has = shutil.which("ninja") or importlib.util.find_spec("ninja")
    return "ninja, which load_inline needs," if form == "load_inline" and not has else ""
