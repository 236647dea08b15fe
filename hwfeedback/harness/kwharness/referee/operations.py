"""Where messages from Go become requests, and answers become messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kwharness.base.records import Message, ProtocolError

# By its name what an operation is asked, and who answers it: descriptors come with the request.
Operations = dict[str, tuple[type[Message], Callable[[Any, list[int]], Message]]]


def result(operations: Operations, msg: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Returns the message with the answer. Raises ProtocolError, and what the handler raises."""
    name = str(msg.get("type"))
    if name not in operations:
        raise ProtocolError(f"unknown request {name!r:.40}")
    asked, handler = operations[name]
    return {"type": "result", "result": handler(asked.from_json(msg), fds).to_json()}
