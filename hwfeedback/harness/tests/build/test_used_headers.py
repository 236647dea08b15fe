"""What an exported file has of our headers: as little as can be read, and all that it uses."""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess

import pytest
import torch

import kernelwright
from kwharness.build import artifacts, headers, used_headers
from kwharness.export import inline_loader
from kwharness.machine import toolchain

LANGUAGES = ("cpp", "cuda")
INCLUDES = "".join(f"#include <{name}>\n" for name in headers.texts())
HOST = {"aligned", "follow", "there", "together"}  # what NVRTC has not
nvrtc = pytest.mark.skipif(not kernelwright.nvrtc_version(), reason="there is no NVRTC here")
compiler = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")


def parts(language: str) -> dict[str, list[used_headers._Part]]:
    """Returns what each header has in a language."""
    read = {n: used_headers._Reader(t) for n, (_, t) in headers.table().items()}
    return {n: list(r.header(language, "")[1].parts()) for n, r in read.items()}


def declared(language: str) -> list[str]:
    """Returns the names of all declarations."""
    found = {p.name for of in parts(language).values() for p in of if not p.text.startswith("#")}
    return sorted(found)


def used(source: str, language: str) -> str:
    return kernelwright._inlined(source, used_headers.table(source, language, headers.table()))


def apart(text: str, name: str) -> tuple[str, str]:
    """Returns the includes of a source, and the rest in a namespace of its own."""
    includes = "".join(re.findall(r"^#include [^\n]*\n", text, re.M))
    rest = re.sub(r"^#include [^\n]*\n", "", text, flags=re.M)
    guards = "".join(f"#undef {g}\n" for g in re.findall(r"^#define (KW_\w+_H)$", rest, re.M))
    return includes, f"{guards}namespace {name} {{\n{rest}\n}}\n"


@pytest.mark.parametrize("language", LANGUAGES)
def test_our_headers_are_read(language: str) -> None:
    """A declaration without a name would stay in every file."""
    for name, of in parts(language).items():
        for part in of:
            plain = re.match(r"#(include|pragma)\b", part.text)
            assert bool(part.name) != bool(plain), (name, part.text)
            words = re.findall(r"\w+", part.text)
            assert not part.name or part.name in words
    assert len(declared(language)) > 40


def each_alone(language: str, leave: set[str]) -> str:
    """Returns a source with each declaration of ours alone with what it needs, in a namespace."""
    includes, bodies = "", ""
    for name in declared(language):
        if name not in leave:
            taken, body = apart(used(f"{INCLUDES}using kw::{name};\n", language), f"only_{name}")
            includes += taken
            bodies += body
    return includes + bodies


@compiler
def test_a_declaration_has_what_it_needs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "each.cpp"
    path.write_text(each_alone("cpp", set()))
    flags = [*kernelwright.FLAGS, "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function"]
    done = subprocess.run([toolchain.compiler(), *flags, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@nvrtc
def test_a_declaration_for_a_gpu_has_what_it_needs() -> None:
    text = re.sub(
        r"^#include <c(limits|math|stdint|string)>\n", "", each_alone("cuda", HOST), flags=re.M
    )
    kernelwright.nvrtc(f"{text}__global__ void nothing() {{}}\n", "sm_90a")


MATHS = re.findall(
    r"\w+",
    "abs sqrt sin cos floor ceil trunc round exp2 log2 log10 exp expm1 log log1p tanh erf term neg "
    "relu relu6 sigmoid silu gelu gelu_tanh softplus hardsigmoid hardswish mish",
)
LOOP = "for (long long i = 0; i < n; ++i) y[i] = kw::{}(x[i]);"
AT = "[&](long long i) {{ return x[i]; }}"
USES = {
    **{name: LOOP.format(name) for name in MATHS},
    **{
        name: f"y[0] = kw::{name}(n, {AT.format()});"
        for name in ("sum", "mean", "prod", "max", "min", "maxnum", "argmax", "argmin")
    },
    "max_sum": f"auto m = kw::max_sum(n, {AT.format()}); y[0] = m.v; y[1] = m.s;",
    "welford": f"auto m = kw::welford(n, {AT.format()}); y[0] = m.v; y[1] = m.s;",
    "scan": f"kw::scan(n, {AT.format()}, [&](long long i, float s) {{ y[i] = s; }});",
    "scan_rows": """kw::scan_rows<4>(0, 4, n / 4, [&](long long r, long long i) {
        return x[r * (n / 4) + i]; }, [&](long long r, long long i, float s) {
        y[r * (n / 4) + i] = s; });""",
    "tiles": """kw::tiles<64>(4, n / 4, [=](long long r, long long a, long long b) {
        kw::each(a, b, [=](long long i) { y[r * (n / 4) + i] = x[i] * r; }); });""",
    "parallel": "kw::parallel(n, [=](long long i) { y[i] = -x[i]; });",
    "load": "kw::prefetch(x, n); float v[4]; kw::load<4>(v, x); kw::store<4>(y, v);",
    "stream": "kw::stream(y, x, n); y[0] = kw::aligned(x, y);",
    "whole": "y[0] = kw::sum(n, [&](long long i) { return (short)(100 * x[i]); });",
    "merged": "kw::MaxSum<float> m = {x[0], 1}, o = {x[1], 1}; m.merge(o); y[0] = m.s;",
}


def function(name: str, when: str) -> str:
    taken = "const float* x, float* y, long long n"
    return f'extern "C" void {when}_{name}({taken}) {{\n{USES[name]}\n}}\n'


@compiler
def test_what_is_left_gives_the_same(tmp_path: pathlib.Path) -> None:
    """By whole headers, and by what each use has of them, to the last bit."""
    whole = headers.inlined(INCLUDES) + "".join(function(n, "before") for n in USES)
    includes, bodies = "", ""
    for name in USES:
        taken, body = apart(used(INCLUDES + function(name, "after"), "cpp"), f"for_{name}")
        includes += taken
        bodies += body
        assert body.count("\n") < whole.count("\n") / 3
    path, built = tmp_path / "both.cpp", tmp_path / "both.so"
    macros = "".join(f"#undef KW_{m}\n" for m in ("FN", "IN", "LOOP"))
    path.write_text(includes + whole + macros + bodies)
    command = [toolchain.compiler(), *kernelwright.FLAGS, "-O1", str(path), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(built))
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 3
    x[7], x[11] = float("inf"), -0.0
    for name in USES:
        got = []
        for when in ("before", "after"):
            y = torch.full_like(x, -77)
            call = getattr(loaded, f"{when}_{name}")
            call(*(ctypes.c_void_p(t.data_ptr()) for t in (x, y)), ctypes.c_longlong(len(x)))
            got.append(y)
        assert torch.equal(*(y.view(torch.int32) for y in got)), name
        assert not bool((got[0] == -77).all()), name


EXPORTED = '''import torch
from kernelwright import native

lib = native(source=r"""
#include <kw/math.h>
#include <kw/parallel.h>
extern "C" void run(const float* x, float* y, long long n) {
  kw::each(n, [=](long long i) { y[i] = kw::gelu_tanh(x[i]); });
}
""")
'''


def test_a_file_has_what_it_uses() -> None:
    got = inline_loader.standalone(EXPORTED)
    assert "float tanh(float x)" in got and "float exp_near(" in got and "as_power" in got
    for other in (
        "erf",
        "log1p",
        "mish",
        "Wide",
        "tiles",
        "KW_TANH_H__",
        "__CUDACC__",
        "KW_VECTOR",
    ):
        assert not re.search(rf"\b{other}\b", got.partition("functions")[0]), other
    assert got.count("\n") <= 180
    with_vectors = EXPORTED.replace(
        "#include <kw/math.h>", "#define KW_VECTOR 256\n#include <kw/math.h>"
    )
    assert "#elif KW_VECTOR == 256" in inline_loader.standalone(with_vectors)


@pytest.mark.parametrize(
    "line",
    [
        "#define CALL(name) kw::gelu##name",  # a name that is put together
        "#ifdef __CUDACC__\n#endif",  # what the file itself asks for
        "#ifdef KW_ERF_H\n#endif",
    ],
)
def test_in_doubt_all_of_it_stays(line: str) -> None:
    text = EXPORTED.replace("extern", f"{line}\nextern", 1)
    got = inline_loader.standalone(text)
    for _, body in headers.table(["kw/math.h", "kw/parallel.h"]).values():
        assert body in got


def test_what_is_evaluated_is_what_is_exported() -> None:
    for text in (EXPORTED, EXPORTED + "\nbuild = native\n"):
        artifacts.of_file(text)
        (source,) = re.findall(r'r"""(.*?)"""', text, re.S)
        got = inline_loader.standalone(text)
        whole = kernelwright._inlined(source, kernelwright.headers)
        assert whole in got or inline_loader.LOADER in got
        known = {n: e for n, e in kernelwright.headers.items() if f'    "{n}": (' in got}
        assert inline_loader.LOADER not in got or known == headers.table(headers.mentioned(text))


def test_lines_of_what_is_left_have_their_numbers() -> None:
    text = used("#include <kw/math.h>\nfloat y = kw::gelu_tanh(x);\nint z;\n", "cpp")
    places = list(headers._places(text))
    assert len(places) == len(text.split("\n"))
    for line, (name, number) in zip(text.split("\n"), places, strict=True):
        if name:
            assert headers.texts()[name].split("\n")[number - 1] == line
    assert headers.apart(text).split("\n")[1:3] == ["float y = kw::gelu_tanh(x);", "int z;"]
    at = text.split("\n").index("int z;") + 1
    said = headers.told_apart(f"source0.cpp:{at}:1: error: no", [text])
    assert said == "source0.cpp:3:1: error: no"


@pytest.mark.parametrize(
    "odd",
    [
        "#define A(x) \\\n  x",
        "}",
        "#if 1",
        "namespace kw {",
        "// of nothing\n#if 1\n#endif",
    ],
)
def test_a_header_written_otherwise_stays_whole(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = headers.table()
    needs, body = texts["kw/exp.h"]
    changed = body.replace("#define KW_EXP_H\n", f"#define KW_EXP_H\n{odd}\n")
    assert changed != body
    monkeypatch.setattr(headers, "table", lambda: {**texts, "kw/exp.h": (needs, changed)})
    assert used_headers.table("int x;", "cpp", headers.table())["kw/exp.h"][1] == changed
