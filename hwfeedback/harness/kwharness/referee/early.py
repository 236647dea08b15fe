"""The referee of a fork server without torch (``forkserver --early``). It answers ``parse`` and
``build_ahead``, and of a candidate only what is known without running it.

The full one gives the same answer, seconds later: an error here says nothing of anybody.
"""

from __future__ import annotations

from typing import Any

from kwharness.base.protocol import Channel, Closed
from kwharness.base.requests import BuildAhead, Parse
from kwharness.base.verdicts import Read
from kwharness.build import builder_client
from kwharness.process import fork_client
from kwharness.referee import ahead


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """``fds``: the connection to the fork server."""
    del config
    server = fork_client.connect(fds[0])

    def read(text: str, mode: str) -> Read:
        return builder_client.parse(server, text, "reference", mode)

    while True:
        try:
            msg, _ = channel.recv()
        except Closed:
            return
        ident = msg.get("id")

        def progress(stage: str, note: str, ident: Any = ident) -> None:
            channel.send({"id": ident, "type": "progress", "stage": stage, "note": note})

        answer: dict[str, Any]
        try:
            if msg.get("type") == "parse":
                parse = Parse.from_json(msg)
                read_now = builder_client.parse(server, parse.source, parse.what, parse.sandbox)
                said = read_now.to_json()
            elif msg.get("type") == "build_ahead":
                asked = BuildAhead.from_json(msg)
                said = ahead.built(server, asked, read, progress, builder_client.EARLY)
            else:
                raise ValueError(f"unknown request {msg.get('type')!r:.40}")
            answer = {"type": "result", "result": said}
        except Exception as e:
            error = {"kind": "early", "message": f"{type(e).__name__}: {e}"[:2000]}
            answer = {"type": "error", "error": error | {"hint": "", "traceback": ""}}
        channel.send({**answer, "id": ident})
