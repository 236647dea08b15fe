"""A language that compiles when its code is called: a row of called_languages.LANGUAGES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def nothing(*_: Any, **__: Any) -> None:
    """Stands in for a kernel."""


@dataclass(frozen=True)
class CalledLanguage:
    """A row. No module that it is of need be here: what imports it does so when it is called."""

    kind: str  # what Candidate.language and BuildReport.form say
    name: str  # in sentences
    module: str  # whose import in a candidate's text tells of it
    on_cores: bool  # its kernels run on the CPU; else on a GPU
    # In a candidate's process.
    folder: Callable[[], str]  # where what it compiles is kept
    function: Callable[[], Any]  # what runs when a kernel is called; None where nobody imported it
    stand_in: Callable[[], None]  # has every kernel do nothing, nor be tuned; or ImportError
    # In the fork server of a machine with a GPU: finds what every process would look for anew.
    prepare: Callable[[], None] = nothing
    # In the referee: what a process says of it.
    errors: frozenset[str] = frozenset()  # types of what its compiler raises
    elsewhere: str = ""  # what it raises where its kernels do not run
    # Of a kernel's record, *.json beside its *.cubin: its names for what a verdict says.
    facts: Mapping[str, str] = field(default_factory=dict)
