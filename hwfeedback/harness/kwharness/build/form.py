"""A form: one way in which a candidate's file has custom code made. Each is a row of forms."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kwharness.base.built import BuildRequest
from kwharness.base.for_builder import Compiled

NATIVE, LOAD_INLINE = "native", "load_inline"
CALLED = "called"  # the kind of what was compiled by calling a candidate


class BuildFailed(RuntimeError):
    """A source does not compile. The message begins with one sentence, and has the compiler's
    words.
    """


@dataclass
class Way:
    """What a candidate's process does with what is asked for: it loads it, or something stands in.
    ``path`` returns where the object of a request lies, and raises BuildFailed.
    """

    path: Callable[[BuildRequest], str]
    stands_in: Callable[[], Any] | None = None  # makes what does nothing
    loaded: dict[str, Any] = field(default_factory=dict)  # what has its functions, by path


@dataclass(frozen=True)
class Form:
    """A row. ``kind`` is what BuildReport.form and a request's kind say."""

    kind: str
    # In the sandbox, of a text that nobody has run.
    calls: re.Pattern[str] | None = None  # dotted names of the functions that are called for it
    language: Callable[[ast.Call], str] = lambda _: ""  # of a call, "" where that does not say
    module: str = ""  # whose import alone tells of it, and which compiles when something is called
    # In the candidate's process: puts what asks for objects in the place of these functions.
    replace: Callable[[Way], None] = lambda _: None
    # In the referee: a foreign request as it is built. Raises Failed, KeyError, TypeError and
    # ValueError.
    for_a_gpu: Callable[[Mapping[str, Any]], bool] = lambda _: False
    checked: Callable[[Mapping[str, Any], str, bool], BuildRequest] | None = None
    # In a builder: compiles a request in a folder. The third is the folder of our lighter headers.
    compile: Callable[[BuildRequest, str, str], Compiled] | None = None
    needs_torch: bool = False  # to be compiled


def texts(value: Any) -> list[str]:
    """Returns one or several texts or paths as a list. Raises ValueError."""
    items = [value] if isinstance(value, (str, os.PathLike)) else list(value or ())
    found = [os.fspath(i) if isinstance(i, os.PathLike) else i for i in items]
    if not all(isinstance(i, str) for i in found):
        raise ValueError("sources, flags and paths of an extension must be strings")
    return found
