"""A timed worker that answers what it likes: windows end with sound figures, or with what is the
worker's fault.
"""

from __future__ import annotations

import json

import hostile
import torch

from kwharness.base import protocol
from kwharness.base.operations import Failure
from kwharness.timing import input_pool, window_base, window_session

_OK = {"ok": True}


def _draw(i: int) -> list[torch.Tensor]:
    return [torch.full((2, 3), float(i))]


_CONTENTS = input_pool.Contents(window_base.Slots.of(_draw(0), _draw(0)), _draw)
_CONTENTS.grow(8)


def seeds() -> list[bytes]:
    honest = {
        "window": [[_OK, []]],
        "ready": [[_OK, []]],
        "calls": [[{**_OK, "event": [1, 2]}, []], [{**_OK, "event": [1], "at": "here"}, []]],
        "end": [[_OK, []]],
    }
    failed = {"ok": False, "error": {"type": "ValueError", "message": "x\ny", "traceback": "t"}}
    return [
        json.dumps(s).encode()
        for s in (
            honest,
            {**honest, "calls": [[failed, []]]},
            {**honest, "ready": [[_OK, [0, 1, 2]]]},
            {**honest, "calls": [[{**_OK, "event": [10**30, -1]}, []]]},
            {**honest, "calls": [[{**_OK, "event": [1, 2]}, []], [{**_OK, "at": [1 << 46]}, []]]},
            {**honest, "window": [["\x00\x00\x00\x02[]", []]]},
        )
    ]


def one(data: bytes) -> None:
    script = hostile.parse(data)
    if script is None:
        return
    before = hostile.descriptors()
    worker = hostile.Hostile(script)
    session = None
    try:
        session = window_session.Session(worker, _CONTENTS, 4, window_session.Options(timeout_s=2))
        for kind in ("fresh", "chained"):
            window = session.run(kind, range(2))
            assert window.calls == 2 and window.wall_ns > 0 and window.event_mean_ns >= 0
            assert all(type(n) is int and 0 <= n < 1 << 62 for n in window.event_ns)
            assert len(window.outputs()) == 1
        session.close()
    except window_base.CallFailed as e:
        assert isinstance(e.error, Failure)
    except protocol.ProtocolError:
        pass
    finally:
        worker.kill()
        del session
    assert hostile.descriptors() <= before, "a descriptor was left open"
