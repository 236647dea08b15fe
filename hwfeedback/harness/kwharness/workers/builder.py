"""The builder: reads foreign texts, finds out what a candidate wants built, and runs the compiler.

One process never does the second and the third: what is cached under the hash of a C++ source must
come from that source, and not from a candidate's Python that ran beside the compiler.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, cast

from kwharness.base import for_builder, operations
from kwharness.base.configs import BuilderConfig
from kwharness.base.operations import Done
from kwharness.base.protocol import Channel
from kwharness.base.verdicts import Read
from kwharness.build import artifacts, compilers, cuda_toolkit, forbidden, sass
from kwharness.export import inline_loader
from kwharness.export.file_facts import About
from kwharness.standalone import looks
from kwharness.torch_compile import inductor
from kwharness.workers import candidate as worker_candidate
from kwharness.workers import early_builder, serving

FILENAME = "candidate.py"
MAX_OBJECT = 256 << 20


def main(channel: Channel, config: BuilderConfig, fds: list[int]) -> None:
    """Serves what base/for_builder.py has."""
    if config.runs:  # a candidate, so that what it compiles when it is called is there
        worker_candidate.serve(channel, config, fds, compiles=True)
        return
    del fds
    if config.inductor_cache:  # it may compile where it is imported
        inductor.use(config.inductor_cache)
    if config.cuda_home:
        os.environ["CUDA_HOME"] = config.cuda_home
    recorded = False
    if config.warm:
        compilers.warm_kernels()

    def parse(request: for_builder.Parse, _: list[int]) -> Read:
        return early_builder.parse(request)

    def record(request: for_builder.Record, _: list[int]) -> for_builder.Recorded:
        nonlocal recorded
        recorded = True
        return _record(inline_loader.read_as(request.source), forbids=request.forbids)

    def export(request: for_builder.Export, _: list[int]) -> for_builder.Exported:
        about = cast("About | None", request.about)
        return for_builder.Exported(inline_loader.standalone(request.source, about=about))

    def compiles(make: Callable[[Channel, str, Any], None]) -> serving.Op:
        def op(request: operations.Request, _: list[int]) -> None:
            if recorded:
                raise RuntimeError("this builder has run a candidate: compile in a fresh one")
            make(channel, config.light, request)

        return op

    alone = looks.Server()
    ops: dict[type[operations.Request], serving.Op] = {
        for_builder.Parse: parse,
        for_builder.ReadFirst: lambda request, _: early_builder.first(request),
        for_builder.Export: export,
        for_builder.Record: record,
        for_builder.Compile: compiles(_compile),
        for_builder.MakeHeader: compiles(_make_header),
        for_builder.MakeHelper: compiles(_make_helper),
        for_builder.ReadFacts: _facts,
        for_builder.Run: alone.run,
        for_builder.Look: alone.look,
    }
    try:
        serving.serve(channel, serving.answering(ops), FILENAME)
    finally:
        alone.close()


def _record(text: str, *, forbids: bool) -> for_builder.Recorded:
    """Imports a candidate and returns what it asks to have built, if all of it compiles.
    ``forbids``: what policy forbids fails.
    """
    noted = artifacts.Noted()
    artifacts.record(noted)
    artifacts.of_file(text)
    if forbids:
        forbidden.forbid()
    error = None
    try:
        module = serving.run_source(text, "candidate", FILENAME)
        made = getattr(module, "ModelNew", None)
        if not isinstance(made, type):
            kind = "" if made is None else f": its ModelNew is a {type(made).__name__}"
            raise NameError(f"the file defines no class ModelNew{kind}")
    except BaseException as e:
        error = serving.error_of(e, FILENAME)
    return for_builder.Recorded(noted.requests, error)


def _compile(channel: Channel, light: str, request: for_builder.Compile) -> None:
    early_builder.compiled(channel, request.request, light, with_torch=True)


def _make_header(channel: Channel, light: str, request: for_builder.MakeHeader) -> None:
    more = cuda_toolkit.cuda_includes() if request.cuda else ()
    with tempfile.TemporaryDirectory() as folder:
        made = compilers.compile_header(request.flags, light, folder, more)
        early_builder.give(channel, made, Done())


def _make_helper(channel: Channel, light: str, _: for_builder.MakeHelper) -> None:
    with tempfile.TemporaryDirectory() as folder:
        early_builder.give(channel, compilers.compile_helper(light, folder), Done())


def _facts(request: for_builder.ReadFacts, given: list[int]) -> for_builder.Facts:
    found = []
    for fd in given:
        with open(f"/proc/self/fd/{fd}", "rb") as f:
            found.append(sass.facts(f.read()))
    return for_builder.Facts(found)
