"""The languages that compile when their code is called: a row each, which is all that the harness
needs of one. Each is a form, too: build/forms.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from kwharness.torch_compile import triton_language
from kwharness.torch_compile.called_language import CalledLanguage

LANGUAGES = (triton_language.TRITON,)


def named(kinds: Iterable[str]) -> list[CalledLanguage]:
    """Returns the languages of these kinds."""
    wanted = set(kinds)
    return [language for language in LANGUAGES if language.kind in wanted]


def that_raises(error: str) -> CalledLanguage | None:
    """Returns the language whose compiler raises errors of a type."""
    return next((language for language in LANGUAGES if error in language.errors), None)


def that_says(message: str) -> CalledLanguage | None:
    """Returns the language that says so where its kernels do not run."""
    return next((x for x in LANGUAGES if x.elsewhere and x.elsewhere in message), None)


def functions() -> dict[str, Callable[..., Any]]:
    """Returns what runs when a kernel is called, by language, of those that were imported."""
    found = {language.kind: language.function() for language in LANGUAGES}
    return {kind: function for kind, function in found.items() if function is not None}


def stand_in() -> None:
    """Has every kernel do nothing, in whichever of the languages that are here."""
    for language in LANGUAGES:
        with contextlib.suppress(ImportError):
            language.stand_in()


def prepare() -> None:
    """Has all find what every process would look for anew."""
    for language in LANGUAGES:
        language.prepare()
