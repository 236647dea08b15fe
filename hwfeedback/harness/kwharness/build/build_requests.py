"""What a candidate's process asks to have built: foreign, and checked here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import kernelwright
from kwharness.build import (
    compiler_flags,
    object_cache,
    reports,
)
from kwharness.build.artifacts import (
    LOAD_INLINE,
    NATIVE,
    inline_key,
    native_key,
)
from kwharness.clients.workshop import Failed
from kwharness.machine import toolchain

MAX_FILES = 500  # that come with one request
_PLACE = re.compile(r"[^/\0][^\0]*")


def includes_of(sources: Sequence[str]) -> list[str]:
    """Returns the folders of CUTLASS's headers, none for sources that include none of them."""
    asked = any(map(kernelwright.cutlass_header, sources))
    return kernelwright.cutlass_folders() if asked else []


def _of_cutlass(sources: Sequence[str]) -> dict[str, Any]:
    """What a request has of CUTLASS: ``includes`` and, for its key, ``cutlass``, "none" where its
    headers are asked for and not there.
    """
    if not any(map(kernelwright.cutlass_header, sources)):
        return {"includes": [], "cutlass": ""}
    return {
        "includes": kernelwright.cutlass_folders(),
        "cutlass": toolchain.cutlass() or object_cache.NONE,
    }


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError("not a list of strings")
    return value


def checked_request(raw: Any, arch: str, *, whole: bool = False) -> dict[str, Any]:
    """Returns a request as it is built, with a key of ours. Raises Failed, and KeyError, TypeError,
    ValueError for what is none. ``whole``: see workshop.
    """
    if not isinstance(raw, dict):
        raise ValueError("not a dict")
    if raw.get("language", "cpp") not in ("cpp", "cuda"):
        raise ValueError("language")
    native = raw["kind"] == NATIVE
    cuda = raw.get("language") == "cuda" if native else "cuda_sources" in raw
    if cuda and not arch:
        raise Failed("rejected", reports.FOR_A_GPU)
    try:
        if native:
            return _native(raw, arch if cuda else "")
        return _inline(raw, arch if cuda else "", whole=whole)
    except compiler_flags.Refused as e:
        raise Failed("rejected", str(e)) from e


def _native(raw: dict[str, Any], arch: str) -> dict[str, Any]:
    name, source, given = raw["name"], raw["source"], _texts(raw["flags"])
    if not isinstance(source, str) or not isinstance(name, str) or not name.isidentifier():
        raise ValueError("name or source is no text")
    words, notes = compiler_flags.taken(given, arch=arch, shell=False)
    language = "cuda" if arch else "cpp"
    request: dict[str, Any] = {"kind": NATIVE, "name": name[:64], "source": source}
    request |= {"flags": words, "notes": notes, "language": language, "arch": arch}
    request["launched"] = bool(arch) and raw.get("launched") is True
    request |= _of_cutlass([source] if arch else [])
    return request | {"request": native_key(source, given, language)}


def _inline(raw: dict[str, Any], arch: str, *, whole: bool) -> dict[str, Any]:
    functions = raw["functions"]
    if functions is not None and not isinstance(functions, dict):
        raise ValueError("functions")
    for name in functions or ():
        if not all(part.isidentifier() for part in name.split("::")):
            raise ValueError(f"{name!r:.100} is no function's name")
    for name in (raw["name"], raw.get("asked", raw["name"])):
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 100:
            raise ValueError("name")
    request = {
        "name": raw["name"],
        "sources": _texts(raw["sources"]),
        "functions": None if functions is None else {k: str(v)[:500] for k, v in functions.items()},
        "flags": _texts(raw["flags"]),
        "ldflags": _texts(raw["ldflags"]),
        "headers": raw["headers"] is True,
        "handling": raw["handling"] is True,
        "module": raw["module"] is True,
    }
    if arch:
        request["cuda_sources"] = _texts(raw["cuda_sources"])
        request["cuda_flags"] = _texts(raw["cuda_flags"])
    request |= _handed_over(raw)
    request |= {"whole": True} if whole else {}
    key = inline_key(request)
    notes: list[str] = []
    kinds = ("flags", "ldflags", "cuda_flags") if arch else ("flags", "ldflags")
    request |= {"given": {which: request[which] for which in kinds}} if whole else {}
    for which in kinds:
        taken = compiler_flags.taken(request[which], arch=arch if which == "cuda_flags" else "")
        request[which] = taken.words
        notes += taken.notes
    if whole:
        notes = []  # torch takes them as they are; what becomes of them at quick was told
    elif any(compiler_flags.OF_ANOTHER in n for n in notes):
        notes.append("torch compiles the file that is handed out for what these flags say")
    request |= {"kind": LOAD_INLINE, "request": key, "notes": notes}
    request |= {"asked": raw["asked"]} if "asked" in raw else {}
    if not arch:
        return request
    texts = [*request["sources"], *request["cuda_sources"], *request.get("files", {}).values()]
    return request | _of_cutlass(texts) | {"language": "cuda", "arch": arch}


def _handed_over(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns the files that come with a request. Each keeps its place, within one folder."""
    found: dict[str, Any] = {}
    files, units = raw.get("files", {}), _texts(raw.get("units", []))
    folders, paths = _texts(raw.get("folders", [])), _texts(raw.get("include_paths", []))
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise ValueError("files")
    if len(files) + len(units) + len(folders) + len(paths) > MAX_FILES:
        raise ValueError(f"over {MAX_FILES} files")
    for name in (*files, *units, *folders):
        parts = name.split("/")
        if not _PLACE.fullmatch(name) or ".." in parts or len(name) > 500:
            raise ValueError(f"{name!r:.100} is no place in a folder")
    if units and len(units) != len(raw["sources"]) + len(raw.get("cuda_sources", ())):
        raise ValueError("units")
    if not all(p.startswith("/") and "\0" not in p for p in paths):
        raise ValueError("include_paths")
    for name, value in (
        ("files", files),
        ("units", units),
        ("folders", folders),
        ("include_paths", paths),
    ):
        if value:
            found[name] = value
    return found
