"""The records of what was built, read back: one that is damaged counts as absent."""

from __future__ import annotations

import json
import os
import shutil
import tempfile

import fuzz_building
import hostile

from kwharness.base.built import BuildResult
from kwharness.base.requests import Candidate
from kwharness.build import builder_client

_CANDIDATE = Candidate("lib = native('')\nclass ModelNew: ...\n")


def _built(folder: str) -> BuildResult:
    script = json.loads(fuzz_building.seeds()[0])
    return builder_client.build(hostile.Server(script), _CANDIDATE, folder)


def _records(folder: str) -> list[str]:
    return [
        os.path.join(folder, kind, name)
        for kind in ("builds", "objects")
        for name in os.listdir(os.path.join(folder, kind))
        if name.endswith(".json")
    ]


def seeds() -> list[bytes]:
    folder = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm")
    try:
        _built(folder)
        kept = []
        for path in _records(folder):
            with open(path, "rb") as f:
                kept.append(f.read())
    finally:
        shutil.rmtree(folder)
    return [*kept, b"", b"[]", b'{"build":{},"artifacts":[1]}', b'{"report":{"vectorised":3}}']


def one(data: bytes) -> None:
    folder = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm")
    try:
        whole = _built(folder)
        assert whole.status == "", whole
        for path in _records(folder):
            with open(path, "wb") as f:
                f.write(data)
        again = _built(folder)
        fuzz_building.checked(again)
    finally:
        shutil.rmtree(folder)
