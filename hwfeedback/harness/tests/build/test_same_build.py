"""What is judged is what its user's own loader builds: the same text under the same name, with the
same flags, into the same bytes. A source that asks what it is compiled with hears the same.
"""

from __future__ import annotations

import copy
import ctypes
import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_builder_client import build
from test_inline_loader import AS_IF

import kernelwright
from kwharness.build import (
    artifacts,
    compilers,
    form,
    form_extension,
    form_native,
    forms,
    headers,
    object_cache,
    object_digest,
    torch_extension,
)
from kwharness.export import file_loader, inline_loader
from kwharness.machine import toolchain
from kwharness.workers import stand_in_compiler

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

# All that a source can ask of its compiler about itself.
ASKS = r"""
#include <kw/exp.h>
#include <kw/reduce.h>   // behind another
#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x
#ifdef __AVX512F__
#define WIDE "wide"
#else
#define WIDE "narrow"
#endif
static const char* said[] = {
  __FILE__, __BASE_FILE__, TEXT(__INCLUDE_LEVEL__), TEXT(__COUNTER__), TEXT(__LINE__),
  __DATE__, __TIME__, __TIMESTAMP__, WIDE,
#if __has_include(<kw/exp.h>) || __has_include("kw/exp.h") || __has_include("vectorised.txt")
  "headers",
#endif
#if __has_include("built.so") || __has_include("source0.o") || __has_include("../kw/exp.h")
  "files",
#endif
#ifdef TORCH_EXTENSION_NAME
  "extension",
#endif
#ifdef OURS
  TEXT(OURS),
#endif
};
extern "C" const char* says(int i) {
  return i < (int)(sizeof said / sizeof *said) ? said[i] : 0;
}
"""
WORK = r"""
extern "C" void f(const float* x, float* y, long long n) {
  for (long long i = 0; i < n; i++) y[i] = kw::exp(x[i]);
}
"""
CANDIDATE = """import torch
from kernelwright import native

lib = native(SOURCE)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
"""
PLAIN = f'r"""{ASKS}{WORK}""", flags=("-DOURS=1",)'
DOUBLED = (ASKS + WORK).replace("{", "{{").replace("}", "}}").replace("\\", "\\\\")
# As it reaches the loader: some of it is known when the file runs alone.
WAYS = {
    "raw": f'r"""{ASKS}{WORK}"""',
    "formatted": f'"""{DOUBLED}""".format(1)',
    "f-string": f'f"""{DOUBLED}"""',
    "by percent": 'r"""' + (ASKS + WORK).replace("%", "%%") + '%s""" % ""',
    "joined": '"".join([r"""' + ASKS + '""", r"""' + WORK + '"""])',
}
FLAGS = ', flags=("-DOURS=1", "-march=x86-64")'  # the second is not this machine's
CALL = """
y = ModelNew()(torch.zeros(3))
assert y.tolist() == [1, 1, 1], y
assert "kernelwright" not in __import__("sys").modules
"""


def built_alone(
    text: str, folder: pathlib.Path, front: str = "", lacks: str = "", **env: str
) -> pathlib.Path:
    """Runs a file as its user does, and returns the object that its own loader has built.
    ``lacks``: what is not there to load it.
    """
    path = folder / "best.py"
    path.write_text(front + text)
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), **env}
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(path)], env=given, capture_output=True, text=True
    )
    assert done.returncode == 0 or (lacks and lacks in done.stderr), done.stderr[-3000:]
    (built,) = (folder / ".cache" / "torch_extensions" / "kernelwright").glob("native-*")
    return built


def says(path: str | pathlib.Path) -> list[str]:
    ask = ctypes.CDLL(str(path)).says
    ask.restype = ctypes.c_char_p
    found: list[str] = []
    while (word := ask(len(found))) is not None:
        found.append(word.decode())
    return found


@pytest.mark.parametrize("way", ["raw", "formatted"])
def test_a_files_own_loader_builds_what_was_judged(
    server: Any, tmp_path: pathlib.Path, way: str
) -> None:
    given = PLAIN if way == "raw" else WAYS[way] + FLAGS
    text = CANDIDATE.replace("SOURCE", given)
    found = build(server, text, tmp_path / "cache", forbids=True)
    assert found.status == "", found
    (artifact,) = found.artifacts
    out = inline_loader.standalone(text)
    assert (file_loader.MARK in out) == (way == "raw")
    own = built_alone(out + CALL, tmp_path)
    assert own.read_bytes() == pathlib.Path(artifact.path).read_bytes()
    said = says(own)
    assert said[0] == said[1] == "source0.cpp" and "headers" not in said and "files" not in said
    assert said[5:8] == ["Jan  1 1970", "00:00:00", "Thu Jan  1 00:00:00 1970"]
    # Judged as that file, it asks for what is built already.
    again = build(server, out, tmp_path / "cache", forbids=True)
    assert [a.key for a in again.artifacts] == [artifact.key]


GPU = r"""
#include <kw/exp.h>
#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x
#define SAID __FILE__ "|" TEXT(__LINE__) "|" TEXT(__COUNTER__) "|" __DATE__ "|" __TIME__
#if __has_include(<kw/exp.h>)
#define KNOWN "headers"
#else
#define KNOWN "none"
#endif
"""
KERNEL = r"""
__constant__ char told[] = SAID "|" KNOWN;
extern "C" __global__ void f(const float* x, float* y, char* z, int n) {
  for (int i = 0; i < (int)sizeof told; i++) z[i] = told[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = kw::exp(x[i]);
}
"""
HOST = KERNEL.replace('extern "C" ', "").replace("void f(", "void kernel(") + (
    r"""
static const char* said[] = {SAID, __BASE_FILE__, __TIMESTAMP__, KNOWN};
extern "C" const char* says(int i) { return i < 4 ? said[i] : 0; }
extern "C" void f(const float* x, float* y, char* z, int n, cudaStream_t s) {
  kernel<<<1, 256, 0, s>>>(x, y, z, n);
}
"""
)
IN_CUDA = CANDIDATE.replace("native(SOURCE)", 'native(language="cuda", source=r"""SOURCE""")')
LOADS = "\ntry:\n    lib.f\nexcept (RuntimeError, OSError) as e:\n    print(e)\n"


@pytest.mark.skipif(not toolchain.nvcc(), reason=toolchain.NO_NVCC)
def test_nvcc_hears_the_same(server: Any, tmp_path: pathlib.Path) -> None:
    text = IN_CUDA.replace("SOURCE", GPU + HOST)
    found = build(server, text, tmp_path / "cache", device="cuda", arch="sm_90a")
    assert found.status == "", found
    home = os.path.dirname(os.path.dirname(toolchain.nvcc()))
    for path in pathlib.Path(home).glob("lib*/libcudart.so.*"):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    judged = says(found.artifacts[0].path)
    assert judged[1:] == ["source0.cu", "Thu Jan  1 00:00:00 1970", "none"]
    out = inline_loader.standalone(text)
    assert file_loader.MARK in out
    own = built_alone(out + LOADS, tmp_path, AS_IF, CUDA_HOME=home, RUNTIME=home)
    assert says(own) == judged


@pytest.mark.skipif(not kernelwright.nvrtc_version(), reason="there is no NVRTC here")
def test_nvrtc_hears_the_same(server: Any, tmp_path: pathlib.Path) -> None:
    dates = ' "|" __DATE__ "|" __TIME__'  # NVRTC has them from the clock
    text = IN_CUDA.replace("SOURCE", GPU.replace(dates, "") + KERNEL)
    assert dates not in text
    found = build(server, text, tmp_path / "cache", device="cuda", arch="sm_90a")
    assert found.status == "", found
    judged = pathlib.Path(found.artifacts[0].path).read_bytes()
    assert b"source0.cu|" in judged and b"|none\0" in judged
    own = built_alone(inline_loader.standalone(text), tmp_path, AS_IF, "libcuda", RUNTIME="/no")
    # A note in it has the flag that asks for a report, too.
    assert object_digest.digest(own.read_bytes()) == object_digest.digest(judged)
    assert found.artifacts[0].loaded == object_digest.digest(judged)
    other = build(
        server,
        text.replace("threadIdx.x;", "threadIdx.y;"),
        tmp_path / "cache",
        device="cuda",
        arch="sm_90a",
    )
    assert other.artifacts[0].loaded != object_digest.digest(judged)


def test_numbers_are_those_of_the_candidates_file(server: Any, tmp_path: pathlib.Path) -> None:
    """Before its includes, between them and behind them, and of a header by its own."""
    text = CANDIDATE.replace("SOURCE", PLAIN)
    lines = text.split("\n")
    for wrong in ("TEXT_OF(x) #x", "static const char* said"):
        at = next(i for i, line in enumerate(lines) if wrong in line)
        broken = "\n".join([*lines[:at], "oops;", *lines[at:]])
        found = build(server, broken, tmp_path)
        assert found.status == "build_failed" and f"line {at + 1}:" in found.reason
        assert f"candidate.py:{at + 1}" in found.build.log
    bad = text.replace("kw::exp(x[i])", 'kw::sum(n, [&](long long) { return "a"; })')
    found = build(server, bad, tmp_path)
    assert found.status == "build_failed" and "kw/reduce.h:" in found.build.log


def test_a_header_in_an_odd_line_is_told_of(server: Any, tmp_path: pathlib.Path) -> None:
    for odd in ("#include /* the */ <kw/exp.h>", "#include <kw/exp.h> /* the\nlast */",
                "#define NAME <kw/exp.h>\n#include NAME", "%:include <kw/exp.h>"):  # fmt: skip
        text = CANDIDATE.replace("SOURCE", PLAIN.replace("#include <kw/exp.h>", odd))
        found = build(server, text, tmp_path)
        assert found.status == "build_failed"
        assert "write #include <kw/exp.h> as a line of its own" in found.reason


def test_another_header_is_another_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is known by the text that the compiler reads."""
    source = f"#include <kw/exp.h>\n{WORK}"
    before = form_native.request_of(headers.inlined(source), (), "f")
    needs, text = headers._whole()["kw/exp.h"]
    monkeypatch.setitem(headers._whole(), "kw/exp.h", (needs, text + "\n// another"))
    after = form_native.request_of(headers.inlined(source), (), "f")
    assert object_cache.object_key(before) != object_cache.object_key(after)


# What a candidate's process might ask of the builder in the loader's place.
GOOD: list[str] = ["g++", *kernelwright.FLAGS, "-DX", "source0.cpp", "-o", "built.so"]


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (["g++", *kernelwright.FLAGS[:-1], "-DJUDGED", *GOOD[-3:]], {}),
        ([*GOOD[:-4], "-march=x86-64", *GOOD[-3:]], {}),
        ([*GOOD[:-2], "-lm", "-o", "built.so"], {}),
        (GOOD, {"env": {"CPATH": "/tmp"}}),
        (GOOD, {"executable": "/bin/sh"}),
        ([*GOOD[:-3], "x.cpp", "-o", "built.so"], {}),
    ],
)
def test_only_a_loaders_command_is_built(
    tmp_path: pathlib.Path, command: list[str], more: dict[str, Any]
) -> None:

    (tmp_path / "source0.cpp").write_text(WORK)
    own = {"cwd": str(tmp_path), "env": {**os.environ, **kernelwright.FIXED}}
    own |= {"capture_output": True, "text": True}
    assert stand_in_compiler._asked_for(GOOD, own) == (WORK, ["-DX"], "cpp")
    assert stand_in_compiler._asked_for(command, own | more) is None


IN_HOST = f'r"""{GPU}{HOST}"""'


@pytest.mark.parametrize(
    ("way", "language"),
    [*((way, "cpp") for way in WAYS), ("raw", "cuda"), ("formatted", "cuda")],
)
def test_a_loaders_command_is_built(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, language: str, way: str
) -> None:
    """With the short loader and with the whole one, of whatever the source is made."""

    if language == "cuda" and not toolchain.nvcc():
        pytest.skip(toolchain.NO_NVCC)
    source, given = ASKS + WORK, WAYS[way]
    if language == "cuda":
        source, given = GPU + HOST, IN_HOST if way == "raw" else f"str() + {IN_HOST}"
    text = CANDIDATE.replace("SOURCE", f'{given}, "{language}", ("-DX", "-DY=1")')
    out = inline_loader.standalone(text)
    assert (file_loader.MARK in out) == (way == "raw")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", os.path.dirname(os.path.dirname(toolchain.nvcc() or "/a/b")))
    for elsewhere in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(elsewhere, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    asked: list[Any] = []

    def run(command: list[str], **more: Any) -> Any:
        asked.append(stand_in_compiler._asked_for(command, more))
        return subprocess.CompletedProcess(command, 1, "", "enough")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RuntimeError, match="enough"):
        exec(out + "\nlib.f\n", {})
    assert asked == [(headers.inlined(source), ["-DX", "-DY=1"], language)]


INLINE = '''import torch
from torch.utils.cpp_extension import load_inline

BODY = """torch::Tensor f(torch::Tensor x) { return x; }"""
lib = load_inline("f", SOURCE, functions=["f"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return lib.f(x)
'''


@pytest.mark.parametrize(
    ("source", "stands"),
    [
        ('"#include <kw/exp.h>\\n" + BODY', True),
        ('["#include <kw/exp.h>", BODY]', True),
        ('f"""\n#include <kw/exp.h>\n{BODY}"""', True),
        ('f"#include <kw/exp.h>\\n{BODY}"', False),
        ('"#include <kw/exp.h>\\n%s" % BODY', False),
        ('"#include <kw/{}.h>\\n".format("exp") + BODY', False),
    ],
)
def test_what_load_inline_includes_stands_in_a_string(source: str, stands: bool) -> None:
    """torch knows nothing of our headers: where they would not be handed out that is told."""
    text = INLINE.replace("SOURCE", source)
    body = "torch::Tensor f(torch::Tensor x) { return x; }"
    given = f"#include <kw/exp.h>\n{body}"
    if source.startswith("["):
        given = "#include <kw/exp.h>"
    if '"""' in source:
        given = f"\n{given}"
    handed = headers.Handed(text)
    if not stands:
        with pytest.raises(ValueError, match="a string of its own"):
            handed.put(given)
        return
    assert handed.put(given) == headers.inlined(given) != given
    seen: list[Any] = []
    code = inline_loader.standalone(text).partition("class ModelNew")[0]
    code = code.replace("from torch.utils.cpp_extension import load_inline", "")
    exec(code, {"load_inline": lambda _, sources, **__: seen.append(sources)})
    (sources,) = seen
    assert (sources[0] if isinstance(sources, list) else sources) == headers.inlined(given)
    assert headers.Handed().put(given) == given, "and is not put into what is handed out"


def test_numbers_without_headers() -> None:
    text = "a\n#include <kw/softmax.h>\n#include <kw/exp.h> // again\nb\n#include <kw/scan.h>\nc"
    whole = headers.inlined(text)
    assert headers.apart(whole).split("\n") == [
        "a", "// #include <kw/softmax.h>", "// #include <kw/exp.h> // again", "b",
        "// #include <kw/scan.h>", "c",
    ]  # fmt: skip
    assert headers.apart("#ifndef KW_EXP_H\nmine\n") == "#ifndef KW_EXP_H\nmine\n"
    lines = whole.split("\n")
    of_scan = lines.index("#ifndef KW_SCAN_H") + 1
    log = f"source0.cpp:{len(lines)}:1: error: x\n  {len(lines)} | c\nsource0.cpp:{of_scan}:1: y"
    own = headers.texts()["kw/scan.h"].split("\n").index("#ifndef KW_SCAN_H") + 1
    told = headers.told_apart(log, [whole]).split("\n")
    assert told[0] == "source0.cpp:6:1: error: x" and told[1].strip() == "6 | c"
    assert told[2] == f"kw/scan.h:{own}:1: y"
    assert compilers.errors("\n".join(told)) == [(0, 6, "x")]


def test_what_counts_of_an_object(tmp_path: pathlib.Path) -> None:
    """Not the folder that it was compiled in, nor its identity; but every number in it."""

    def made(name: str, number: int, *flags: str) -> bytes:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.cpp").write_text(f'extern "C" int f(int x) {{ return x + {number}; }}')
        command = [toolchain.compiler(), "-O2", "-fPIC", "-shared", *flags, "a.cpp", "-o", "a.so"]
        subprocess.run(command, cwd=folder, check=True)
        return (folder / "a.so").read_bytes()

    debugged = made("b", 1000, "-g", "-Wl,--build-id")
    again = made("c", 1000, "-g", "-Wl,--build-id")
    assert debugged != again
    one = object_digest.digest(debugged)
    assert (
        one
        == object_digest.digest(again)
        != object_digest.digest(made("d", 1001, "-g", "-Wl,--build-id"))
    )
    assert object_digest.digest(debugged + b"behind all that is loaded") == one
    for cut in (b"", debugged[:60], debugged[:200], b"\x7fELF\x02\x01" + b"\xff" * 80):
        assert object_digest.digest(cut) == object_digest.digest(cut) != one


EXTENSION: dict[str, Any] = {
    "name": "twice",
    "cpp_sources": ["int f(int x);", "int g(int x) { return f(x); }\n"],
    "functions": {"f": "twice", "g": "once"},
    "extra_cflags": ["-O2", "-DX='a b'"],
    "extra_ldflags": ["-lm", "-Wl,--no-undefined"],
    "extra_include_paths": ["/usr/include"],
}
OF_CUDA: dict[str, Any] = {
    "cuda_sources": "int f(int x) { return 2 * x; }",
    "extra_cuda_cflags": ["-O1 --use_fast_math", "-lineinfo"],
}


@pytest.mark.skipif(not shutil.which("ninja"), reason="there is no ninja here")
@pytest.mark.parametrize("arch", ["", "sm_90a"])
def test_torch_is_given_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """For a certificate the builder has the text and the words that torch has where it builds."""
    if arch and not toolchain.nvcc():
        pytest.skip(toolchain.NO_NVCC)
    torchs = importlib.import_module("torch.utils.cpp_extension")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")  # what torch sees of that GPU
    for elsewhere in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(elsewhere, raising=False)
    monkeypatch.setattr(torchs, "CUDA_HOME", toolchain.cuda_home())
    monkeypatch.setattr(torchs, "_write_ninja_file", torchs._write_ninja_file)  # put back
    for name in ("_run_ninja_build", "_import_module_from_library"):
        monkeypatch.setattr(torchs, name, lambda *_, **__: None)
    given = EXTENSION | (OF_CUDA if arch else {}) | {"name": f"twice{arch}"}
    other = given | {"cpp_sources": "int f(int x) { return x; }"}  # so its name has a number then
    artifacts.of_file("", handed_out=True)
    try:
        form_extension.inline_request(other)
        raw = {"kind": form.LOAD_INLINE, **form_extension.inline_request(given)}
    finally:
        artifacts.of_file("")
    for one in (other, given):
        torchs.load_inline(**copy.deepcopy(one))
    (theirs,) = (tmp_path / "user").glob(".cache/torch_extensions/*/twice*")
    ninja = dict(line.split(" = ", 1) for line in (theirs / "build.ninja").read_text().split("\n")
                 if re.match(r"\w+ = ", line))  # fmt: skip
    commands: list[list[str]] = []

    def run(command: list[str], folder: str, **_: Any) -> tuple[int, str]:
        commands.append(command)
        pathlib.Path(folder, command[-1]).touch()
        return 0, ""

    monkeypatch.setattr(compilers, "run", run)
    done = torch_extension.compile_as_torch(
        forms.checked_request(raw, arch, whole=True), str(tmp_path / "ours")
    )
    ours = pathlib.Path(done.object).parent
    assert ours.relative_to(tmp_path / "ours") == theirs.relative_to(tmp_path / "user")
    for name in ("main.cpp", "cuda.cu") if arch else ("main.cpp",):
        assert (ours / name).read_text() == (theirs / name).read_text()
    by_output = {c[-1]: c for c in commands}
    host, link = by_output["main.o"], by_output[f"twice{arch}_v1.so"]
    assert host[1:-6] == shlex.split(ninja["cflags"]) and host[-3] == str(ours / "main.cpp")
    objects = ["main.o", "cuda.cuda.o"] if arch else ["main.o"]
    assert link[1:-2] == [*objects, *compilers._found(shlex.split(ninja["ldflags"]))]
    if arch:
        assert by_output["cuda.cuda.o"][1:-6] == shlex.split(ninja["cuda_cflags"])
