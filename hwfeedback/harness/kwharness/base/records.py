"""Messages as dataclasses: read from JSON, and written as JSON, at the edge of a process.

A class of messages is a dataclass below ``Message``. Its fields are the keys of one JSON object,
and their types are checked when it is read. Inside a process no message is a dictionary.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Self

# Metadata of a field.
FLAT = {"flat": True}  # its keys stand among those of its owner: an embedded struct in Go
INSIDE = {"inside": True}  # it is in no message
NULL = {"null": True}  # it is written as null where it is None; any other one is left out there
KEY = "key"  # its key in JSON, where that is not its name


class ProtocolError(Exception):
    """The peer broke the protocol, or a message cannot be sent as it is."""


_NATURAL = "natural"
Natural = Annotated[int, _NATURAL]  # a whole number from 0 to 2**62, as sizes and counts are


class Message:
    """A JSON object with typed fields.

    An absent key and null stand for the field's default, and so does an empty text where that is a
    text. Keys that no field has are passed over, so that a newer sender is understood.
    """

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Reads an object. Raises ProtocolError, with the place, for what it cannot be."""
        where = where or cls.__name__
        if not isinstance(value, dict):
            raise ProtocolError(f"{where} is no object")
        found: dict[str, Any] = {}
        for f, hint in typed(cls):
            if f.metadata.get("flat"):
                found[f.name] = hint.from_json(value, where)
                continue
            name = key_of(f)
            given = value.get(name)
            default = f.default_factory() if callable(f.default_factory) else f.default
            if given is None or (given == "" and isinstance(default, str)):
                if default is MISSING:
                    raise ProtocolError(f"{where} has no {name}")
                continue
            found[f.name] = _read(hint, given, f"{where}.{name}")
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        """Returns the object: fields that are None are left out, but for those of NULL."""
        out: dict[str, Any] = {}
        for f, _ in typed(type(self)):
            value = getattr(self, f.name)
            if f.metadata.get("flat"):
                out |= value.to_json()
            elif value is not None or f.metadata.get("null"):
                out[key_of(f)] = _written(value)
        return out


def key_of(f: Field[Any]) -> str:
    """Returns the key that a field has in JSON."""
    return str(f.metadata.get(KEY, f.name))


def typed(cls: Any) -> list[tuple[Field[Any], Any]]:
    """Returns the fields of a message, with their types."""
    return _typed(cls)


@functools.cache
def _typed(cls: Any) -> list[tuple[Field[Any], Any]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return [(f, hints[f.name]) for f in fields(cls) if not f.metadata.get("inside")]


def _read(hint: Any, value: Any, where: str) -> Any:
    """Returns a value of this type, or raises ProtocolError."""
    if hint is Any:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ProtocolError(f"{where} is no natural number")
        return value
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in args if a is not type(None)]
        return None if value is None else _read(inner, value, where)
    if origin is list:
        if not isinstance(value, list):
            raise ProtocolError(f"{where} is no list")
        if _PLAIN.get(args[0], _unknown)(value):
            return list(value)  # a long one is not read element by element
        return [_read(args[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where} is no object")
        return {str(k): _read(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin is tuple or (isinstance(hint, type) and issubclass(hint, tuple)):
        return _read_tuple(hint, value, where)
    if is_dataclass(hint):
        return hint.from_json(value, where)  # type: ignore[union-attr]
    if typing.is_typeddict(hint):
        hint = dict
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as e:
            raise ProtocolError(f"{where} is no number of 64 bits") from e
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ProtocolError(f"{where} is no {hint.__name__}")
    if hint is int and not -(1 << 63) <= value < 1 << 64:
        raise ProtocolError(f"{where} is no number of 64 bits")
    return value


def _read_tuple(hint: Any, value: Any, where: str) -> Any:
    """Returns a tuple, which is a list in JSON: of one type, or each element of its own."""
    args = typing.get_args(hint)
    kinds = args or tuple(typing.get_type_hints(hint).values())  # those of a NamedTuple
    if not isinstance(value, (list, tuple)):
        raise ProtocolError(f"{where} is no list")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ProtocolError(f"{where} has not {len(kinds)} elements")
    read = [_read(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))]
    return tuple(read) if args else hint(*read)


def _unknown(_: list[Any]) -> bool:
    return False


# Whether all elements of a list are of one type, as ``_read`` has it.
_PLAIN: dict[Any, Callable[[list[Any]], bool]] = {
    Natural: lambda v: all(type(x) is int and 0 <= x < 1 << 62 for x in v),
    int: lambda v: all(type(x) is int and -(1 << 63) <= x < 1 << 64 for x in v),
    float: lambda v: all(type(x) is float for x in v),
    str: lambda v: all(type(x) is str for x in v),
    bool: lambda v: all(type(x) is bool for x in v),
    Any: lambda _: True,
}


def _written(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_written(v) for v in value]
    if isinstance(value, dict):
        return {k: _written(v) for k, v in value.items()}
    return value
