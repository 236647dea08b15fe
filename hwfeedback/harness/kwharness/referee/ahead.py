"""What is told of a candidate that does not build, before a device is needed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import kernelwright
from kwharness.base.answers import BuiltAhead
from kwharness.base.requests import ANY_CODE, BuildAhead
from kwharness.base.verdicts import Read
from kwharness.build import builder_client
from kwharness.process.fork_client import ForkServer


def built(
    server: ForkServer,
    asked: BuildAhead,
    read: Callable[[str, str], Read],
    progress: Callable[[str, str], None],
    trial: str = builder_client.TRIAL,
) -> BuiltAhead:
    """Answers the request ``build_ahead``. ``read`` parses the text of a reference in a sandbox.

    ``status`` is empty where the candidate can be run, where ``trial`` leaves that open, and for a
    reference, which is read first, that seems to be no task: its inspection says more than any
    candidate does.
    """
    start = time.monotonic()
    fingerprint = ""
    if asked.reference:
        parsed = read(asked.reference, asked.sandbox)
        if parsed.problems:
            return BuiltAhead()
        fingerprint = parsed.normalised_hash
    built = builder_client.build(
        server,
        asked.candidate,
        asked.cache_dir,
        asked.device,
        asked.sandbox,
        functools.partial(progress, "build"),
        asked.arch,
        forbids=asked.custom_code != ANY_CODE,
        trial=trial,
    )
    folders = kernelwright.cutlass_folders() if built.cutlass else []
    return BuiltAhead(
        built.status,
        built.reason,
        built.language,
        built.missing,
        built.build,
        fingerprint,
        cutlass=kernelwright.cutlass_version(folders) if folders else "",
        seconds=round(time.monotonic() - start, 4),
    )
