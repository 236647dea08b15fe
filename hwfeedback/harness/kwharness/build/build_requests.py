"""What the checks of foreign requests to build share (forms.checked_request)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import kernelwright
from kwharness.base.built import BuildRequest
from kwharness.build import object_cache
from kwharness.machine import toolchain

MAX_FILES = 500  # that come with one request
_PLACE = re.compile(r"[^/\0][^\0]*")


def includes_of(sources: Sequence[str]) -> list[str]:
    """Returns the folders of CUTLASS's headers, none for sources that include none of them."""
    asked = any(map(kernelwright.cutlass_header, sources))
    return kernelwright.cutlass_folders() if asked else []


def of_cutlass(sources: Sequence[str]) -> BuildRequest:
    """What a request has of CUTLASS: ``includes`` and, for its key, ``cutlass``, "none" where its
    headers are asked for and not there.
    """
    if not any(map(kernelwright.cutlass_header, sources)):
        return {"includes": [], "cutlass": ""}
    return {
        "includes": kernelwright.cutlass_folders(),
        "cutlass": toolchain.cutlass() or object_cache.NONE,
    }


def texts(value: Any) -> list[str]:
    """Returns a list of strings. Raises ValueError for anything else."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError("not a list of strings")
    return value


def handed_over(raw: Mapping[str, Any]) -> BuildRequest:
    """Returns the files that come with a request. Each keeps its place, within one folder."""
    found: BuildRequest = {}
    files, units = raw.get("files", {}), texts(raw.get("units", []))
    folders, paths = texts(raw.get("folders", [])), texts(raw.get("include_paths", []))
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
    if files:
        found["files"] = files
    if units:
        found["units"] = units
    if folders:
        found["folders"] = folders
    if paths:
        found["include_paths"] = paths
    return found
