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
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Any, NamedTuple

import pytest

from kwharness.base import (
    answers,
    calibration,
    carried,
    graph,
    learned,
    paths,
    protocol,
    records,
    requests,
    verdicts,
)
from kwharness.base.answers import Answer
from kwharness.base.protocol import ProtocolError
from kwharness.base.requests import Build, BuildAhead, Export, Inspect, Parse, Request
from kwharness.base.verdicts import Verdict

SCHEMA = pathlib.Path(protocol.__file__).with_name("referee.schema.json")
GOLDEN = pathlib.Path(paths.ROOT).parent / "testdata" / "protocol"
ASKED = (Request, Answer, Parse, Inspect, Build, BuildAhead, Export)
MODULES = (requests, answers, verdicts, learned, calibration, carried, graph)
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
    if origin is tuple or issubclass(origin or hint, tuple):
        kinds = args[:1] if Ellipsis in args else args or typing.get_type_hints(hint).values()
        return {"type": "array", "items": kind_of(next(iter(kinds)))}
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
    found = [c for m in MODULES for c in vars(m).values()]
    classes = {c for c in found if isinstance(c, type) and is_dataclass(c)} - flat
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
        "title": "kernelwright: requests to the referee, and its answers",
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


class Pair(NamedTuple):
    first: int
    second: str


@dataclass
class Tuples(records.Message):
    pairs: list[Pair] = field(default_factory=list)
    any: tuple[tuple[int, int], ...] = ()


def test_tuples_are_lists_in_json() -> None:
    found = Tuples.from_json({"pairs": [[1, "x"]], "any": [[1, 2], [3, 4]]})
    assert found == Tuples([Pair(1, "x")], ((1, 2), (3, 4))) and found.pairs[0].second == "x"
    assert Tuples.from_json(json.loads(json.dumps(found.to_json()))) == found
    for wrong, says in (
        ({"pairs": [3]}, r"pairs\[0\] is no list"),
        ({"pairs": [[1]]}, r"pairs\[0\] has not 2 elements"),
        ({"pairs": [["x", "x"]]}, r"pairs\[0\]\[0\] is no int"),
        ({"any": [[1, 2], [3]]}, r"any\[1\] has not 2 elements"),
    ):
        with pytest.raises(ProtocolError, match=f"^Tuples.{says}$"):
            Tuples.from_json(wrong)


# What is learned: Go keeps it, and may hand back an older harness's.


def test_what_is_learned_is_read_as_it_was_written() -> None:
    whole = golden("result_evaluate")["result"]["learned"]
    found = learned.Learned.from_json(whole)
    assert found.calibration is not None and found.calibration.lines == [(0, 0, 2)]
    assert found.calibration.axes == [((0, 1),)]
    assert json.loads(json.dumps(found.to_json())) == whole
    assert learned.Learned.from_json(None) == learned.Learned()


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({"calibration": None}, {"baselines", "profile"}),
        ({"calibration": 3, "baselines": [], "profile": "x"}, set()),
        ({"calibration": {"version": 10}}, {"baselines", "profile"}),  # another version
        ({"profile": {"tool": "ncu"}}, {"calibration", "baselines"}),
    ],
)
def test_a_part_that_cannot_be_read_is_none(changed: dict[str, Any], left: set[str]) -> None:
    found = learned.Learned.from_json({**golden("result_evaluate")["result"]["learned"], **changed})
    assert set(found.to_json()) == left


@pytest.mark.parametrize(
    "change",
    [
        {"families": []},
        {"families": [{"name": "base"}]},
        {"lines": [[0, 1]]},
        {"axes": [[[0]]]},
        {"wide": "yes"},
        {"carried": {}},
        {"assumptions": {"x": "1"}},
    ],
)
def test_a_calibration_that_lacks_something_is_none(change: dict[str, Any]) -> None:
    kept = golden("result_evaluate")["result"]["learned"]["calibration"]
    assert learned.Learned.from_json({"calibration": kept}).calibration is not None
    assert learned.Learned.from_json({"calibration": {**kept, **change}}).calibration is None


def test_each_baseline_is_read_by_itself() -> None:
    kept = golden("result_evaluate")["result"]["learned"]["baselines"]["eager"]
    known = {"eager": kept, "a": {}, "b": 1, "c": {**kept, "blocks": [["x"]]}}
    assert set(learned.Learned.from_json({"baselines": known}).baselines or {}) == {"eager"}
