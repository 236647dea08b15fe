"""A candidate's worker that answers what it likes: the referee has a verdict on it, or its Fault in
one sentence; never another exception, and never a descriptor more than before.
"""

from __future__ import annotations

import json

import hostile
import torch

from kwharness.attribution import trace
from kwharness.base import operations
from kwharness.clients.candidate_client import CandidateClient
from kwharness.model import weights
from kwharness.referee import faults

_OK = {"ok": True}
_SPEC = {"dtype": "float32", "shape": [2, 3]}
_HUGE = {"dtype": "float32", "shape": [1 << 60, 1 << 60]}
_TELLS = {"takes": "", "names": ["v"], "specs": [_SPEC], "constants": [1.0]}
_TRACED = {
    "total": 0.4,
    "operators": {"add": {"seconds": 0.1, "calls": 2}},
    "native": {"f": {"seconds": 0.2, "calls": 1}},
    "regions": {"inductor": {"seconds": 0.1, "calls": 1}},
    "plain": 0.01,
    "met": {"add": 4},
}
_ENDLESS = {"f": {"seconds": 1e300, "calls": 1 << 40}}
_HONEST = {
    "load": [[{**_OK, "flags": {}}, []]],
    "init": [[{**_OK, "broken": []}, []]],
    "describe": [[{**_OK, **_TELLS}, []]],
    "show": [[_OK, []]],
    "carry": [[_OK, []]],
    "set_state": [[_OK, []], [{**_OK, "changed": True}, []]],
    "map": [[_OK, []]],
    "forward": [[{**_OK, "fits": True, "outputs": [_SPEC], "aliases": [-1], "flags": {}}, []]],
    "settle": [[_OK, []]],
    "trace": [[{**_OK, **_TRACED}, []]],
    "timed": [[_OK, []]],
}
_WEIGHTS = weights.Reference([weights.Entry("w", torch.ones(2, 3), 1.0)], [True], [0])
_ERROR = {
    "type": "ValueError",
    "message": "first\nsecond",
    "traceback": "Traceback\n x",
    "stage": "forward",
    "lines": [3, 4],
}


def seeds() -> list[bytes]:
    raised = {"ok": False, "error": _ERROR}
    return [
        json.dumps(s).encode()
        for s in (
            _HONEST,
            {**_HONEST, "forward": [[raised, []]]},
            {**_HONEST, "load": [[{"ok": False, "error": {**_ERROR, "stage": "output"}}, []]]},
            {**_HONEST, "load": [["\x00\x00\x00\x05{}", []]]},
            {**_HONEST, "load": [[_OK, [0, 8, 1]]]},
            {**_HONEST, "describe": [[{**_OK, **_TELLS, "constants": [10**400]}, []]]},
            {**_HONEST, "describe": [[{**_OK, **_TELLS, "names": ["w", "w"]}, []]]},
            {**_HONEST, "describe": [[{**_OK, **_TELLS, "specs": [_HUGE]}, []]]},
            {**_HONEST, "trace": [[{**_OK, **_TRACED, "native": _ENDLESS}, []]]},
        )
    ]


def one(data: bytes) -> None:
    script = hostile.parse(data)
    if script is None:
        return
    before = hostile.descriptors()
    client = CandidateClient(hostile.Hostile(script), 2.0)
    tensors, tree = [torch.ones(2, 3)], {"list": [{"t": 0}]}
    try:
        with faults.faults("verifying it", client):
            client.load("class ModelNew: ...", [], [], threads=1, timeout=2)
            client.init(tree, tensors, eval_mode=True, timeout=2)
            client.plan = client.plan_for(_WEIGHTS)
            client.set_state(["w"], tensors)
            client.set_state(["w"], tensors, in_place=True)
            client.begin_forward(tree, tensors, tensors, {"t": 0}, [-1])
            answer = client.finish_forward()
            assert len(answer.outputs) == 1 and not answer.wrote and not answer.outside
            if answer.problem:
                raise faults.Fault("wrong", answer.problem)
            seen = client.trace(tree, tensors)
            work, calls = trace.report(seen, True, regions=True)
            assert 0 <= trace.not_custom(seen, work) <= 1
            client.tell(operations.Trees(tree, {"t": 0}), timeout=2)
            hostile.sendable([work.to_json(), float(calls)])
            assert 0 <= work.custom <= 1 and len(work.operators or ()) <= 64
    except faults.Fault as e:
        hostile.sentence(str(e))
        assert e.status in ("crashed", "timed_out", "wrong"), e.status
        hostile.sendable([e.hint, e.evidence, e.output])
        assert sum(map(len, e.evidence)) < 10_000
    finally:
        client.kill()
    assert hostile.descriptors() <= before, "a descriptor was left open"
