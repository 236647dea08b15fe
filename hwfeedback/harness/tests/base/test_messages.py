"""The messages as dataclasses: what is read of JSON, and that referee.schema.json has their keys.

Go holds its structs to the same file (protocol_test.go).
"""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import types
import typing
from dataclasses import MISSING, is_dataclass
from typing import Any

import pytest

from kwharness.base import graph, paths, protocol, records, requests, verdicts
from kwharness.base.protocol import ProtocolError
from kwharness.base.requests import Build, BuildAhead, Export, Inspect, Parse, Request
from kwharness.base.verdicts import Answer, Verdict

SCHEMA = pathlib.Path(protocol.__file__).with_name("referee.schema.json")
GOLDEN = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol"
ASKED = (Request, Answer, Parse, Inspect, Build, BuildAhead, Export)
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def kind_of(hint: Any) -> dict[str, Any]:
    """Returns what JSON Schema says of a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint == records.Natural:
        return {"type": "integer", "minimum": 0}
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in args if a is not type(None)]
        return kind_of(inner)
    if origin is list:
        return {"type": "array", "items": kind_of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": kind_of(args[1])}
    if is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": NAMES[hint]}


def meanings(cls: Any) -> dict[str, str]:
    """Returns what the comment beside a field says: its unit, and what it means."""
    found: dict[str, str] = {}
    said = ""
    for line in inspect.getsource(cls).splitlines():
        code, _, comment = line.partition("# ")
        if not code.strip():  # it stands above its field
            said = f"{said} {comment}".strip()
            continue
        if m := re.match(r"    (\w+): ", code):
            found[m[1]] = f"{said} {comment}".strip()
        said = ""
    return found


def properties(cls: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the keys of a message, and those that must be there."""
    found: dict[str, Any] = {}
    required: list[str] = []
    said = meanings(cls)
    for f, hint in records.typed(cls):
        if f.metadata.get("flat"):
            found |= properties(hint)[0]
            continue
        meaning = {"description": said[f.name]} if said.get(f.name) else {}
        found[records.key_of(f)] = {**kind_of(hint), **meaning}
        if f.default is MISSING and f.default_factory is MISSING:
            required.append(records.key_of(f))
    return found, required


def messages() -> list[Any]:
    flat = {h for c in ASKED for f, h in records.typed(c) if f.metadata.get("flat")}
    found = [c for m in (requests, verdicts, graph) for c in vars(m).values()]
    classes = {c for c in found if is_dataclass(c)} - flat
    return sorted(classes, key=lambda c: c.__name__)


def wanted() -> dict[str, Any]:
    """Returns the schema that the dataclasses are."""
    defs = {}
    for cls in messages():
        keys, required = properties(cls)
        defs[cls.__name__] = {
            "description": " ".join((inspect.getdoc(cls) or "").split()),
            "type": "object",
            "properties": keys,
            **({"required": required} if required else {}),
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kernelwright: requests to the referee, and the answer to evaluate",
        "type": "object",
        "properties": {c.__name__: {"$ref": f"#/$defs/{c.__name__}"} for c in ASKED},
        "$defs": defs,
    }


def written(value: Any, indent: str = "") -> str:
    """Returns JSON with what is short on one line."""
    line = json.dumps(value)
    if len(indent) + len(line) < 90 or not isinstance(value, dict):
        return line
    inner = indent + "  "
    parts = [f"{inner}{json.dumps(k)}: {written(v, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def test_the_schema_is_that_of_the_dataclasses(tmp_path: pathlib.Path) -> None:
    text = written(wanted()) + "\n"
    (tmp_path / SCHEMA.name).write_text(text)
    same = SCHEMA.exists() and SCHEMA.read_text() == text
    assert same, f"copy {tmp_path / SCHEMA.name} to its place, and hold Go's structs to it"


def within(given: Any, found: Any, where: str) -> None:
    """Asserts that what is found has all that was given."""
    if isinstance(given, dict):
        for k, v in given.items():
            within(v, found[k], f"{where}.{k}")
    elif isinstance(given, list):
        assert len(given) == len(found), where
        for i, (a, b) in enumerate(zip(given, found, strict=True)):
            within(a, b, f"{where}[{i}]")
    else:
        assert given == found, where


def test_a_golden_request_is_read_and_written() -> None:
    msg = golden("evaluate")
    given = Request.from_json(msg).to_json()
    body = {k: v for k, v in msg.items() if k not in ("v", "type", "id", "fds")}
    for name, value in body.items():
        if isinstance(value, dict):  # what is not known is written as its default, or not at all
            value = {k: v for k, v in value.items() if v is not None}
        within(value, given[name], name)
    assert Request.from_json(given).to_json() == given


def test_a_golden_answer_is_read_and_written() -> None:
    result = golden("result_evaluate")["result"]
    # Blank is the verdict of a candidate that came to nothing: it has what every verdict has.
    required = ("assumes", "evidence", "flags", "hint", "weights", "work")
    found = Answer.from_json(result).to_json()
    assert set(required) <= found["verdict"].keys() - result["verdict"].keys()
    within(result, found, "result")
    assert Answer.from_json(found).to_json() == found


def test_what_is_not_known_is_not_written() -> None:
    result = golden("result_evaluate")["result"]
    v = Verdict.from_json({**result["verdict"], "speedup": None, "profile": None})
    told = v.to_json()
    assert told["speedup"] is None and "profile" not in told and "exported" not in told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"task": None}, "Request has no task"),
        ({"task": []}, "Request.task is no object"),
        ({"task": {}}, "Request.task has no source"),
        ({"candidate": {"source": 3}}, "Request.candidate.source is no str"),
        ({"threads": "two"}, "Request.threads is no int"),
        ({"threads": True}, "Request.threads is no int"),
        ({"upcoming": [{}]}, r"Request.upcoming\[0\] has no source"),
        ({"ceilings": {"memory_gbs": "fast"}}, "Request.ceilings.memory_gbs is no float"),
        ({"time": 1}, "Request.time is no bool"),
    ],
)
def test_what_cannot_be_read_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{says}$"):
        Request.from_json({**golden("evaluate"), **change})


def test_what_is_absent_has_its_default() -> None:
    least = Request.from_json({"task": {"source": "x"}, "candidate": {"source": ""}, "level": ""})
    assert (least.rules.level, least.rules.precision) == ("quick", "float32")
    assert least.workplace.threads > 0 and least.workplace.gpu is None
    assert least.timed.time and least.rules.requires_custom
    newer = {"task": {"source": "x"}, "candidate": {"source": "y"}, "of a newer sender": 1}
    assert Request.from_json(newer).candidate.source == "y"
