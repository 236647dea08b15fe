"""Writes what an exported file needs to compile and call its sources: a class in front of it, and
at its end the compiler's call with a function for each prototype, checked as
``kernelwright.native`` checks. For sources in C++, or in CUDA with code for the host, that stand in
the file as they are.

The text is foreign: this module is for a sandboxed worker.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

import kernelwright

NATIVE = "_native"  # what stands for kernelwright.native in the file
# What is written here is called so; the file itself must not have these names.
NAMES = re.compile(r"\b_(native|load|stream|functions_\d+|explain|too_large)\b")
MARK = "# What compiles the sources of this file, written by kernelwright: it needs torch and "
FRONT = '''
class _native:
    """The functions of a source. The end of this file compiles it at its first use."""
    made = 0
    __deepcopy__ = lambda self, _: self
    def __init__(self, source, language="cpp", flags=(), name=None):
        self._made = source, tuple(flags), name or "native", _native.made
        _native.made += 1
    def __getattr__(self, name):
        if not name.startswith("__"):
            _load(self)
        return object.__getattribute__(self, name)

'''
_LOAD = '''import torch
def _load(library):
    """Compiles a source, once a machine, into torch's folder for extensions, and loads it."""
    import ctypes, hashlib, os, pathlib, shutil, subprocess, tempfile
    source, flags, name, number = library._made
COMPILER
    key = hashlib.sha256(repr((source, command, machine)).encode()).hexdigest()[:32]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = (os.environ.get("TORCH_EXTENSIONS_DIR") or f"{caches}/torch_extensions") + f"/kernelwright/{name}-{key}.so"
    if os.path.exists(path):
        return globals()[f"_functions_{number}"](library, ctypes.CDLL(path))
    if not shutil.which(compiler):
        raise RuntimeError(MISSING)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=os.path.dirname(path))
    except OSError:  # what it compiles lasts for this process then
        folder, path = tempfile.TemporaryDirectory(), ""
    with folder as work:
        pathlib.Path(work, "NAMED").write_text(sourceTAIL, encoding="utf-8")
        os.utime(f"{work}/NAMED", (0, 0))  # what a source can read of itself is the same everywhere
        done = subprocess.run(command, cwd=work, env={**os.environ, FIXED}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} does not compile:\\n{done.stderr}")
        path = shutil.move(f"{work}/built.so", path) if path else f"{work}/built.so"
        globals()[f"_functions_{number}"](library, ctypes.CDLL(path))
'''  # noqa: E501
_COMPILERS = {
    "cpp": """\
    compiler = os.environ.get("CXX") or "g++"
    command = [compiler, *FLAGS.split(), *flags, "NAMED", "-o", "built.so"]
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        machine = next((line for line in f if line.startswith(("flags", "Features"))), "")""",
    "cuda": """\
    compiler = shutil.which("nvcc") or os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"
    machine = "{}{}{}".format(*(of := torch.cuda.get_device_capability()), "a" * (of[0] > 8))
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    own = [f"-Xlinker=/{m.partition('/')[2]}" for m in maps if "/libcudart" in m]  # torch's runtime
    command = [compiler, *FLAGS.split(), f"-gencode=arch=GENERATED", *flags, LAST]""",
}
_FLAGS = {"cpp": kernelwright.FLAGS, "cuda": kernelwright.CUDA_FLAGS}
_MISSING = {
    "cpp": 'f"{compiler} was not found: install g++, or set CXX"',
    "cuda": '"nvcc was not found: install the CUDA toolkit, or set CUDA_HOME"',
}
_NEEDED = {"cpp": "g++", "cuda": "nvcc"}
# Torch's current stream, which is appended to a call.
_STREAM = "_stream = lambda: torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())\n"


class Unwritten(Exception):
    """A source for which there is no short loader."""


def behind(sources: Sequence[str], language: str) -> str:
    """Returns what stands at the end of a file that makes libraries of these sources, in this
    order. Raises Unwritten.
    """
    load = _LOAD.replace("COMPILER", _COMPILERS[language]).replace("MISSING", _MISSING[language])
    load = load.replace("GENERATED", "compute_{machine},code=sm_{machine}")
    load = load.replace("FLAGS", f'"{" ".join(_FLAGS[language])}"')
    own = ", ".join(f'"{word}"' for word in kernelwright.OWN_RUNTIME)
    behind = f'"NAMED", {own}, *(own[:1] or ["-lcudart"]), "-o", "built.so"'
    load = load.replace("LAST", behind).replace("NAMED", kernelwright.FILES[language])
    load = load.replace("FIXED", ", ".join(f'"{k}": "{v}"' for k, v in kernelwright.FIXED.items()))
    tail = f" + {kernelwright._CUDA_TAIL!r}" if language == "cuda" else ""
    load = load.replace("TAIL", tail)
    functions = []
    for i, source in enumerate(sources):
        found = kernelwright.prototypes(source)
        if not found or not all(_defines(source, name) for name in found):
            raise Unwritten("a function that is declared alone, or none")
        if language == "cuda" and kernelwright.cutlass_header(source):
            raise Unwritten("headers that lie where CUTLASS_PATH says")
        functions.append(_functions(i, found, language))
    text = "".join(functions)
    said = (kernelwright._explain, kernelwright._too_large)
    used = [f"\n{_bare(inspect.getsource(f))}" for f in said if f"{f.__name__}(" in text]
    if "_stream()" in text:
        load = load.replace("import torch\n", f"import torch\n{_STREAM}", 1)
    return "".join([f"{MARK}{_NEEDED[language]}.\n", load, *used, text])


def _bare(function: str) -> str:
    """Returns a function's text without the types of its parameters."""
    tree = ast.parse(function)
    of = tree.body[0]
    assert isinstance(of, ast.FunctionDef)
    of.returns = None
    for a in of.args.args:
        a.annotation = None
    return ast.unparse(tree) + "\n"


def _defines(source: str, name: str) -> bool:
    """Whether the source has a body for a function."""
    text = kernelwright._plain(source)
    return re.search(rf"\b{name}\s*\([^;{{}}]*\)\s*(noexcept\s*)?{{", text) is not None


def _functions(number: int, found: dict[str, Any], language: str) -> str:
    """Returns the function that takes in those of a loaded source: each as kernelwright makes it,
    written out. Raises Unwritten.
    """
    gpu = language == "cuda"
    kinds: set[str] = {"c_char_p"} if gpu else set()
    body: list[str] = []
    for name, (result, parameters) in found.items():
        try:
            made = kernelwright._Signature(name, parameters, "cuda" if gpu else "cpu", streams=gpu)
            gives = kernelwright._result(name, *result)
        except ValueError as e:
            raise Unwritten(str(e)) from e
        if not _RESERVED.isdisjoint([name, *made.names]):
            raise Unwritten("a name that the functions round it use")
        names = [kind.__name__ for kind in made.kinds]
        kinds.update(names, [gives.__name__] if gives else [])
        types = f"[{', '.join(names)}], {gives.__name__ if gives else None}"
        taken = "".join(f"{n}, " for n in made.names)
        checks = "".join(_written(check, made.space) for check in made.checks)
        passed = ", ".join("_stream()" if p == "stream()" else p for p in made.passed)
        body += [
            f"    call_{name} = loaded.{name}\n",
            f"    call_{name}.argtypes, call_{name}.restype = {types}\n",
            f"    def {name}({taken}{'/' if taken else ''}):\n{checks}",
            _CALL_CUDA.format(name=name, passed=passed)
            if gpu
            else f"        return call_{name}({passed})\n",
            f"    library.{name} = {name}\n",
        ]
    used = f"    from ctypes import {', '.join(sorted(kinds))}\n" if kinds else ""
    said = "    (failed := loaded.kernelwright_launch_error).restype = c_char_p\n" * gpu
    head = f"\ndef _functions_{number}(library, loaded):\n{used}{said}"
    return head + "".join(body)


_CALL_CUDA = """\
        out, wrong = call_{name}({passed}), failed()
        if wrong:
            raise RuntimeError("{name}: " + wrong.decode())
        return out
"""
_RESERVED = {"torch", "library", "loaded", "failed", "kernelwright_launch_error"}
# By what a check refers to the types of its tensor, and to what says what is wrong.
_REFERS = re.compile(r"(?<![\w'])([dt]\d{1,3}|explain|too_large)(?![\w'])")


def _written(check: str, space: dict[str, Any]) -> str:
    """Returns a check with what it refers to as a file's text."""

    def literal(m: re.Match[str]) -> str:
        meant = space.get(m[0], m[0])
        if callable(meant):
            return f"_{m[0]}"
        return f"({''.join(f'{t}, ' for t in meant)})" if isinstance(meant, tuple) else str(meant)

    return _REFERS.sub(literal, check)
