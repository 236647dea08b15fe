"""The builder of a fork server without torch (``forkserver --early``): it reads foreign texts and
runs the compiler, and no candidate.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from kwharness.base.built import BuildRequest
from kwharness.base.protocol import Channel, Closed
from kwharness.build import first_request, forms, sass, source
from kwharness.export import inline_loader


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """Serves ``parse``, ``first`` and ``compile``."""
    del fds
    if config.get("cuda_home"):
        os.environ["CUDA_HOME"] = str(config["cuda_home"])
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
            error = {"type": type(e).__name__, "message": str(e)[:2000], "traceback": ""}
            answer = {"ok": False, "error": error}
        if answer is not None:
            channel.send({"ok": True, **answer})


def _answer(channel: Channel, msg: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the answer, None where it was given."""
    if msg["op"] == "compile":
        compiled(channel, msg["request"], with_torch=False)
        return None
    text = msg["source"]
    if msg["op"] == "first":
        return {"request": first_request.first_request(inline_loader.read_as(text))}
    candidate = msg["what"] == "candidate"
    return source.parse(inline_loader.read_as(text) if candidate else text, msg["what"])


def compiled(channel: Channel, request: BuildRequest, light: str = "", *, with_torch: bool) -> None:
    """Compiles a request and answers with the object."""
    if forms.of_kind(request["kind"]).needs_torch and not with_torch:
        raise ValueError(f"{request['kind']} is compiled where torch is")
    with tempfile.TemporaryDirectory() as folder:
        answer(channel, forms.compile_request(request, folder, light))


def answer(channel: Channel, report: dict[str, Any]) -> None:
    """Answers with what a compiler said, and with the object where there is one."""
    for kernel in report.get("kernels", ()):
        kernel["name"] = sass.demangled(kernel["name"])
    path = report.pop("object")
    if not path:
        channel.send({"ok": True, "built": False, **report})
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        channel.send({"ok": True, "built": True, **report}, [fd])
    finally:
        os.close(fd)
