"""A reference's worker that answers what it likes: inspection ends with a task, or with Invalid in
one sentence.
"""

from __future__ import annotations

import gc
import json

import hostile

from kwharness.task import inspect_task, invalid

_SPEC = {"dtype": "float32", "shape": [2, 3]}
_ENTRY = {**_SPEC, "offset": 0}
_BLOCK = {"ok": True, "layout": [_ENTRY], "size": 64}
_SIGNATURE = {"names": ["x"], "keywords": [], "defaults": {}, "any": False}
_WEIGHTS = {
    "names": ["w"],
    "state": [_SPEC],
    "trainable": [True],
    "moved": [True],
    "tied": [0],
    "constants": [1.0],
    "training": False,
    "arguments": ["x"],
    "forward": _SIGNATURE,
    "constructor": _SIGNATURE,
}
_SEEN = {
    "inputs": [_SPEC],
    "input_names": ["x"],
    "outputs": [_SPEC],
    "operators": ["aten.relu"],
    "operations": 6,
    "linear": True,
    "lengths": [],
    "products": [],
    "unkept": [],
    "shared": [],
    "carried": {
        "names": [],
        "specs": [],
        "written": [],
        "inputs": [],
        "given": 1,
        "returned": 1,
    },
    "eager_ms": 0.5,
}
_STATE = {
    **_SEEN,
    "carried": {
        "names": ["m"],
        "specs": [_SPEC],
        "written": [0],
        "inputs": ["x"],
        "given": 1,
        "returned": 1,
    },
}
_EACH = {"at": 0, "count": 1, "sources": [None], "aliases": [-1], "tree": {"t": 0}}
_X = {"shape": [4], "dtype": "float32", "strides": [1]}
_NODE = {"name": "y", "op": "aten.relu.default", "args": [{"ref": "x"}], "kwargs": {}}
_GRAPH = {
    "inputs": [{"name": "x", "path": [0], **_X}],
    "parameters": [],
    "constants": [{"name": "c", **_X, "data": [1.0]}],
    "nodes": [{**_NODE, "outputs": [_X], "many": False}],
    "outputs": {"value": {"ref": "y"}},
    "batch": None,
}
_HONEST = {
    "construct": [[{**_BLOCK, **_WEIGHTS, "init": {"list": []}, "layout": [], "breaks": []}, [8]]],
    "draw": [[{**_BLOCK, "tree": {"list": [{"t": 0}]}, "orders": [[]]}, [8]]],
    "inspect": [[{"ok": True, **_SEEN}, []]],
    "forward": [[{**_BLOCK, "each": _EACH}, [8]], [{**_BLOCK, "each": _EACH}, []]],
    "state": [[_BLOCK, [8]]],
    "carry": [[{"ok": True}, []]],
    "capture": [[{"ok": True, "graph": _GRAPH, "note": ""}, []]],
}


def seeds() -> list[bytes]:
    failed = {"error": {"type": "E", "message": "m", "stage": "forward", "lines": [1]}}
    source = {"at": 1, "kind": "index", "dim": 1, "several": False}
    two = {**_BLOCK, "layout": [_ENTRY, {**_ENTRY, "offset": 64}], "size": 128}
    return [
        json.dumps(s).encode()
        for s in (
            _HONEST,
            {**_HONEST, "inspect": [[{"ok": True, **_STATE}, []]]},
            {**_HONEST, "inspect": [[{"ok": True, **_SEEN, "unkept": ["b"]}, []]]},
            {**_HONEST, "inspect": [[{"ok": True, **_SEEN, "shared": ["\x1b", "c"]}, []]]},
            {**_HONEST, "forward": [[{**_BLOCK, "each": failed}, [8]]]},
            {**_HONEST, "draw": [[{**_BLOCK, "tree": {"list": [{"t": 0}]}, "orders": [[]]}, [12]]]},
            {**_HONEST, "capture": [[{"ok": True, "graph": {"nodes": []}}, []]]},
            {**_HONEST, "draw": [[{**_BLOCK, "tree": {"t": 0}, "orders": [[1, 2], [-1]]}, [8]]]},
            {**_HONEST, "state": [[{"ok": False, "error": {"type": "SystemExit"}}, []]]},
            {
                **_HONEST,
                "forward": [[{**two, "each": {**_EACH, "count": 2, "sources": [source]}}, [16]]],
            },
        )
    ]


def one(data: bytes) -> None:
    script = hostile.parse(data)
    if script is None:
        return
    before = hostile.descriptors()
    try:
        task = inspect_task.inspect(
            lambda: hostile.Hostile(script), "n", "source", "f" * 64, threads=1, timeout_s=2
        )
        hostile.sendable(task.to_json())
        assert task.least_bytes >= 0 and task.operations >= 0
    except invalid.Invalid as e:
        hostile.sentence(e.message)
        hostile.sendable({"message": e.message, "hint": e.hint, "traceback": e.traceback})
    if not hostile.descriptors() <= before:
        gc.collect()  # an error that was raised holds the frame that held it, and tensors
    assert hostile.descriptors() <= before, "a descriptor was left open"
