"""The referee of a fork server without torch (``forkserver --early``). It answers ``parse`` and
``build_ahead``, and of a candidate only what is known without running it.

The full one gives the same answer, seconds later: an error here says nothing of anybody.
"""

from __future__ import annotations

from typing import Any

from kwharness.base.answers import BuiltAhead, Refusal
from kwharness.base.protocol import Channel, Closed
from kwharness.base.requests import BuildAhead, Parse
from kwharness.base.verdicts import Read
from kwharness.build import builder_client
from kwharness.process import fork_client
from kwharness.referee import ahead, operations
from kwharness.referee.operations import Operations


def main(channel: Channel, config: dict[str, Any], fds: list[int]) -> None:
    """``fds``: the connection to the fork server."""
    del config
    server = fork_client.connect(fds[0])

    def read(text: str, mode: str) -> Read:
        return builder_client.parse(server, text, "reference", mode)

    def progress(stage: str, note: str) -> None:
        channel.send({"id": ident, "type": "progress", "stage": stage, "note": note})

    def parsed(asked: Parse, _: list[int]) -> Read:
        return builder_client.parse(server, asked.source, asked.what, asked.sandbox)

    def built_ahead(asked: BuildAhead, _: list[int]) -> BuiltAhead:
        return ahead.built(server, asked, read, progress, builder_client.EARLY)

    ident: Any = None
    known: Operations = {"parse": (Parse, parsed), "build_ahead": (BuildAhead, built_ahead)}
    while True:
        try:
            msg, given = channel.recv()
        except Closed:
            return
        ident = msg.get("id")
        try:
            answer = operations.result(known, msg, given)
        except Exception as e:
            refusal = Refusal("early", f"{type(e).__name__}: {e}"[:2000])
            answer = {"type": "error", "error": refusal.to_json()}
        channel.send({**answer, "id": ident})
