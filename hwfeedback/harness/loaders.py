"""Writes what an exported file needs to compile and call its sources: a class in front of it, and
at its end the compiler's call with a function for each prototype, checked as
``kernelwright.native`` checks. For sources in C++ that stand in the file as they are.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ctypes
import keyword
import re
from collections.abc import Sequence
from typing import Any

import kernelwright

NATIVE = "_native"  # what stands for kernelwright.native in the file
WIDTH = 100
# What functions that are written here refer to; the file itself must not have these.
_OURS = {"library", "loaded", "torch", "_wrong"}
NAMES = re.compile(r"\b_(native|load|wrong|FUNCTIONS|functions_\d+)\b")
MARK = (
    "# What compiles the sources of this file, written by kernelwright: it needs torch and g++.\n"
)
FRONT = '''
class _native:
    """The functions of a source in C++. The end of this file compiles it at its first use."""

    made = 0

    def __init__(self, source, language="cpp", flags=(), name=None):
        self._source, self._flags, self._name = source, tuple(flags), name or "native"
        self._number, _native.made = _native.made, _native.made + 1

    def __getattr__(self, name):
        if not name.startswith("__"):
            _load(self)
        return object.__getattribute__(self, name)

    def __deepcopy__(self, _):
        return self


'''
_LOAD = '''

def _load(library):
    """Compiles a source, once a machine, into torch's folder for extensions, and loads it."""
    import ctypes
    import hashlib
    import os
    import subprocess
    import tempfile

    source, name = library._source, library._name
    compiler = os.environ.get("CXX") or "g++"
    command = [compiler, *FLAGS.split(), *library._flags]
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        machine = next((line for line in f if line.startswith(("flags", "Features"))), "")
    key = hashlib.sha256(repr((source, command, machine)).encode()).hexdigest()[:32]
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    path = os.path.join(root, "kernelwright", f"{name}-{key}.so")
    if os.path.exists(path):
        _FUNCTIONS[library._number](library, ctypes.CDLL(path))
        return
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=os.path.dirname(path))
    except OSError:  # what it compiles lasts for this process then
        folder, path = tempfile.TemporaryDirectory(), ""
    with folder as work:
        text, built = os.path.join(work, f"{name}.cpp"), os.path.join(work, "built.so")
        with open(text, "w", encoding="utf-8") as f:
            f.write(source)
        try:
            done = subprocess.run([*command, text, "-o", built], capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError(f"{compiler} was not found: install g++, or set CXX") from None
        if done.returncode:
            raise RuntimeError(f"{name} does not compile:\\n{done.stderr}")
        if path:
            os.replace(built, path)
        _FUNCTIONS[library._number](library, ctypes.CDLL(path or built))


def _wrong(function, **tensors):
    """Raises what is wrong with the tensors of a call: name=(tensor, its types)."""
    for name, (t, *types) in tensors.items():
        if t is None or t.is_cpu and t.is_contiguous() and (t.dtype in types or not types):
            continue
        want = " or ".join(map(str, types))
        what = f"{t.dtype} on {t.device} with strides {t.stride()}"
        raise ValueError(f"{function}: {name} must be {want}, contiguous, on the CPU; it is {what}")
    raise ValueError(f"{function}: a number is too large for its type")
'''


class Unwritten(Exception):
    """Sources for which there is no short loader."""


def behind(sources: Sequence[str]) -> str:
    """Returns what stands at the end of a file that makes libraries of these sources, in this
    order. Raises Unwritten.
    """
    load = _LOAD.replace("FLAGS", f'"{" ".join(kernelwright.FLAGS)}"')
    parts = [MARK, load]
    for i, source in enumerate(sources):
        found = kernelwright.prototypes(source)
        if not found or not all(_defines(source, name) for name in found):
            raise Unwritten("a function that is declared alone, or none")
        parts.append(_functions(i, found))
    names = ", ".join(f"_functions_{i}" for i in range(len(sources)))
    parts.append(f"\n\n_FUNCTIONS = [{names}]\n")
    return "".join(parts)


def _defines(source: str, name: str) -> bool:
    """Whether the source has a body for a function."""
    text = kernelwright._plain(source)
    return re.search(rf"\b{name}\s*\([^;{{}}]*\)\s*(noexcept\s*)?{{", text) is not None


def _filled(checks: Sequence[str]) -> list[str]:
    """Returns the conditions joined, in lines of at most WIDTH characters where that can be."""
    lines, line = [], ""
    for i, check in enumerate(checks):
        more = check if i == len(checks) - 1 else f"{check} and"
        if line and len(line) + 1 + len(more) > WIDTH:
            lines.append(line + "\n")
            line = ""
        line = f"{line} {more}" if line else f"            {more}"
    return [*lines, line + "\n"]


def _functions(number: int, found: dict[str, Any]) -> str:
    """Returns the function that takes in those of a loaded source."""
    kinds: set[str] = set()
    body: list[str] = []
    for name, ((kind, pointer), parameters) in found.items():
        body += _function(name, kind, pointer, parameters, kinds)
    used = ", ".join(sorted(kinds))
    head = [f"\n\ndef _functions_{number}(library, loaded):\n"]
    head += [f"    from ctypes import {used}\n\n"] if used else []
    return "".join([*head, "    import torch\n", *body])


def _function(
    name: str, kind: str, pointer: bool, parameters: kernelwright.Parameters, kinds: set[str]
) -> list[str]:
    """The lines of one function; what they use of ctypes goes into ``kinds``."""

    def c(kind: Any) -> str:
        kinds.add(kind.__name__)
        return str(kind.__name__)

    types: list[str] = []
    passed: list[str] = []
    checks: list[str] = []
    told: list[str] = []
    names: list[str] = []
    for i, (parameter, of, is_pointer) in enumerate(parameters):
        fine = parameter.isidentifier() and not keyword.iskeyword(parameter)
        a = parameter if fine and parameter not in _OURS and parameter != name else f"a{i}"
        names.append(a)
        value, dtypes = kernelwright._TYPES.get(of, (None, ()))
        if is_pointer:
            types.append(c(ctypes.c_void_p))
            passed.append(f"{a} is not None and {a}.data_ptr()")
            held = f"{a}.is_cpu and {a}.is_contiguous()"
            listed = [str(d) for d in dtypes]
            if len(listed) == 1:
                held = f"{a}.dtype is {listed[0]} and {held}"
            elif listed:
                held = f"{a}.dtype in ({', '.join(listed)}) and {held}"
            checks.append(f"({a} is None or {held})")
            told.append(f"{a}=({', '.join([a, *listed])}{',' * (not listed)})")
            continue
        if value is None:
            raise Unwritten(f"a parameter of type {of}")
        types.append(c(value))
        passed.append(a)
        if value in (ctypes.c_int32, ctypes.c_uint32):
            low, high = ("0", "1 << 32") if value is ctypes.c_uint32 else ("-1 << 31", "1 << 31")
            checks.append(f"({low}) <= {a} < ({high})")
    if kind == "void" and not pointer:
        result = "None"
    elif pointer:
        result = c(ctypes.c_void_p)
    elif (value := kernelwright._TYPES.get(kind, (None, ()))[0]) is not None:
        result = c(value)
    else:
        raise Unwritten(f"a result of type {kind}")
    listed_types = ", ".join(types)
    lines = [
        f"\n    call_{name} = loaded.{name}\n",
        f"    call_{name}.argtypes, call_{name}.restype = [{listed_types}], {result}\n",
        f"\n    def {name}({', '.join(names)}{', /' if names else ''}):\n",
    ]
    if checks:
        lines.append("        if not (\n" + "".join(_filled(checks)) + "        ):\n")
        said = ", ".join([f'"{name}"', *told])
        lines.append(f"            _wrong({said})\n")
    lines.append(f"        return call_{name}({', '.join(passed)})\n")
    lines.append(f"\n    library.{name} = {name}\n")
    return lines
