"""The builder: reads foreign texts, finds out what a candidate wants built, and runs the compiler.

One process never does the second and the third: what is cached under the hash of a C++ source must
come from that source, and not from a candidate's Python that ran beside the compiler.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from kwharness.base.protocol import Channel
from kwharness.build import (
    artifacts,
    compilers,
    cuda_toolkit,
    first_request,
    forbidden,
    sass,
    source,
)
from kwharness.export import inline_loader
from kwharness.standalone import looks
from kwharness.torch_compile import inductor
from kwharness.workers import candidate as worker_candidate
from kwharness.workers import early_builder, serving

FILENAME = "candidate.py"
MAX_OBJECT = 256 << 20


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """Serves ``parse``, ``first``, ``record``, ``export``, ``compile``, ``facts``; ``cold``, then
    ``look``.
    """
    if config.get("runs"):  # a candidate, so that what it compiles when it is called is there
        worker_candidate.main(channel, config, fds)
        return
    del fds
    if config.get("inductor_cache"):  # it may compile where it is imported
        inductor.use(config["inductor_cache"])
    if config.get("cuda_home"):
        os.environ["CUDA_HOME"] = str(config["cuda_home"])
    recorded = False
    if config.get("warm"):
        compilers.warm_kernels()

    def parse(msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        candidate = msg["what"] == "candidate"
        text = inline_loader.read_as(msg["source"]) if candidate else msg["source"]
        return source.parse(text, msg["what"])

    def first(msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        text = inline_loader.read_as(msg["source"])
        return {"request": first_request.first_request(text)}

    def record(msg: dict[str, Any], _: list[int]) -> dict[str, Any]:
        nonlocal recorded
        recorded = True
        return _record(inline_loader.read_as(msg["source"]), forbids=msg.get("forbids") is True)

    def compile_(msg: dict[str, Any], _: list[int]) -> None:
        if recorded:
            raise RuntimeError("this builder has run a candidate: compile in a fresh one")
        _compile(channel, msg, str(config.get("light") or ""))

    def facts(_: dict[str, Any], given: list[int]) -> dict[str, Any]:
        found = []
        for fd in given:
            with open(f"/proc/self/fd/{fd}", "rb") as f:
                found.append(sass.facts(f.read()))
        return {"kernels": found}

    alone = looks.Server()
    ops = {
        "parse": parse,
        "first": first,
        "export": lambda msg, _: {
            "source": inline_loader.standalone(msg["source"], about=msg.get("about"))
        },
        "record": record,
        "compile": compile_,
        "cold": alone.run,
        "look": alone.look,
        "facts": facts,
    }
    try:
        serving.serve(channel, ops, FILENAME)
    finally:
        alone.close()


def _record(text: str, *, forbids: bool) -> dict[str, Any]:
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
        error = serving.error_of(e, FILENAME).to_json()
    return {"requests": noted.requests, "error": error}


def _compile(channel: Channel, msg: dict[str, Any], light: str) -> None:
    request = msg["request"]
    if request["kind"] not in ("header", "helper"):
        early_builder.compiled(channel, request, light, with_torch=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        if request["kind"] == "header":
            more = cuda_toolkit.cuda_includes() if request["cuda"] else ()
            built = compilers.compile_header(request["flags"], light, folder, more)
        else:
            built = compilers.compile_helper(light, folder)
        early_builder.answer(channel, {"object": built})
