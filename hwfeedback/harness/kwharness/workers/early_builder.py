"""The builder of a fork server without torch (``forkserver --early``): it reads foreign texts and
runs the compiler, and no candidate.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from kwharness.base.built import BuildRequest
from kwharness.base.configs import BuilderConfig
from kwharness.base.for_builder import Compile, First, Parse, ReadFirst
from kwharness.base.operations import Failure
from kwharness.base.protocol import Channel, Closed
from kwharness.base.records import Message
from kwharness.base.verdicts import Read
from kwharness.build import first_request, forms, sass, source
from kwharness.export import inline_loader


def main(channel: Channel, config: BuilderConfig, fds: list[int]) -> None:
    """Serves ``parse``, ``first`` and ``compile``."""
    del fds
    if config.cuda_home:
        os.environ["CUDA_HOME"] = config.cuda_home
    while True:
        try:
            msg, _ = channel.recv()
        except Closed:
            return
        try:
            answer = _answer(channel, msg)
        except Closed:
            return
        except BaseException as e:
            failure = Failure(type(e).__name__, str(e)[:2000])
            channel.send({"ok": False, "error": failure.to_json()})
            continue
        if answer is not None:
            channel.send({"ok": True, **answer.to_json()})


def _answer(channel: Channel, msg: dict[str, Any]) -> Message | None:
    """Returns the answer, None where it was given."""
    if msg["op"] == Compile.op:
        compiled(channel, Compile.from_json(msg).request, with_torch=False)
        return None
    if msg["op"] == ReadFirst.op:
        return first(ReadFirst.from_json(msg))
    return parse(Parse.from_json(msg))


def parse(request: Parse) -> Read:
    candidate = request.what == "candidate"
    text = inline_loader.read_as(request.source) if candidate else request.source
    return source.parse(text, request.what)


def first(request: ReadFirst) -> First:
    return First(first_request.first_request(inline_loader.read_as(request.source)))


def compiled(channel: Channel, request: BuildRequest, light: str = "", *, with_torch: bool) -> None:
    """Compiles a request and answers with the object."""
    if forms.of_kind(request["kind"]).needs_torch and not with_torch:
        raise ValueError(f"{request['kind']} is compiled where torch is")
    with tempfile.TemporaryDirectory() as folder:
        said = forms.compile_request(request, folder, light)
        for kernel in said.kernels:
            kernel.name = sass.demangled(kernel.name)
        give(channel, said.object, said)


def give(channel: Channel, path: str, answer: Message) -> None:
    """Answers, with a file where there is one."""
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC)] if path else []
    try:
        channel.send({"ok": True, **answer.to_json()}, fds)
    finally:
        for fd in fds:
            os.close(fd)
