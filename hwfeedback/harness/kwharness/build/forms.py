"""The forms in which candidates have custom code built: a row each, which is all that a build needs
of one. docs/code-map.md lists what else a language takes.
"""

from __future__ import annotations

import re
from typing import Any

from kwharness.base.built import BuildRequest, Failed
from kwharness.base.for_builder import Compiled
from kwharness.build import compiler_flags, form_extension, form_native, reports
from kwharness.build.form import Form, Way
from kwharness.torch_compile import called_languages

# The first one that a text uses is its form.
FORMS = (
    form_native.FORM,
    form_extension.INLINE,
    form_extension.WORK_FOLDER,
    *(Form(language.kind, module=language.module) for language in called_languages.LANGUAGES),
)
NONE = "none"  # the form of a text that uses none
KINDS = tuple(dict.fromkeys(f.kind for f in FORMS))
CALLS = re.compile("|".join(f.calls.pattern for f in FORMS if f.calls is not None))
SOURCES = ("cpp", "cuda")  # what a request's "language" may be


def of_call(name: str) -> Form | None:
    """Returns the form that a function of this dotted name is called for."""
    return next((f for f in FORMS if f.calls is not None and f.calls.fullmatch(name)), None)


def built(kind: str) -> Form | None:
    """Returns the form of this kind, None where nothing is made of a text before it is called."""
    return next((f for f in FORMS if f.kind == kind and f.compile is not None), None)


def of_kind(kind: str) -> Form:
    """Returns the form of a kind of requests. Raises KeyError."""
    if (found := built(kind)) is None:
        raise KeyError(f"{kind!r:.40} is nothing that is built")
    return found


def replace(way: Way) -> None:
    """Has every form ask for what it would build, in this process."""
    for form in FORMS:
        form.replace(way)


def checked_request(raw: Any, arch: str, *, whole: bool = False) -> BuildRequest:
    """Returns a request as it is built, with a key of ours. Raises Failed, and KeyError, TypeError,
    ValueError for what is none. ``whole``: see builder_client.workshop.
    """
    if not isinstance(raw, dict):
        raise ValueError("not a dict")
    if raw.get("language", "cpp") not in SOURCES:
        raise ValueError(f"language {raw['language']!r:.40}")
    form = of_kind(raw["kind"])
    assert form.checked is not None
    cuda = form.for_a_gpu(raw)
    if cuda and not arch:
        raise Failed("rejected", reports.FOR_A_GPU)
    try:
        return form.checked(raw, arch if cuda else "", whole)
    except compiler_flags.Refused as e:
        raise Failed("rejected", str(e)) from e


def compile_request(request: BuildRequest, folder: str, light: str = "") -> Compiled:
    """Compiles a request in a folder. ``light``: the folder of our lighter headers, or ""."""
    form = of_kind(request["kind"])
    assert form.compile is not None
    return form.compile(request, folder, light)
