"""The headers that candidates include: what they compute, how they are found, and what stands in
their place in a file that is handed out.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_builder_client import build

import kernelwright
from kwharness.build import artifacts, form_extension, form_native, headers, object_cache
from kwharness.export import inline_loader
from kwharness.machine import toolchain

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

ROOT = pathlib.Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "headers.md").read_text()
EMULATED = ROOT / "coder" / "testdata" / "cuda_on_cpu.h"
FOLDER = pathlib.Path(headers.FOLDER, "kw")
CANDIDATES = re.findall(r'^```python\n("""([\w ]+)""".*?)^```$', PAGE, re.M | re.S)
LANGUAGES = {"cpp": [], "cuda": []}  # type: dict[str, list[tuple[str, str]]]
for _text, _name in CANDIDATES:
    LANGUAGES["cuda" if 'language="cuda"' in _text else "cpp"].append((_name, _text))
REFERENCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (1024,)),
}
nvrtc = pytest.mark.skipif(not kernelwright.nvrtc_version(), reason="there is no NVRTC here")


def named(candidates: list[tuple[str, str]]) -> Any:
    return pytest.mark.parametrize(("name", "text"), candidates, ids=[n for n, _ in candidates])


def compiled(source: str, folder: pathlib.Path, *flags: str) -> ctypes.CDLL:
    """Compiles C++ as the builder does, with the headers in their place or beside it."""
    text, built = folder / "source.cpp", folder / "built.so"
    text.write_text(source)
    command = [toolchain.compiler(), *kernelwright.FLAGS, *flags, str(text), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(built))


def pointer(t: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())


# Of each row: what both devices have by the same names. I is the type of a position.
ROWS = r"""
#include <kw/math.h>
#include <kw/softmax.h>
#include <kw/welford.h>
#define ALL(a, y, n) \
  y[0] = kw::sum<T>(n, [&](I i) { return a[i]; }); \
  y[1] = kw::mean<T>(n, [&](I i) { return a[i]; }); \
  y[2] = kw::max<T>(n, [&](I i) { return a[i]; }); \
  y[3] = kw::min<T>(n, [&](I i) { return a[i]; }); \
  y[4] = kw::maxnum<T>(n, [&](I i) { return a[i]; }); \
  y[5] = kw::argmax<T>(n, [&](I i) { return a[i]; }); \
  y[6] = kw::argmin<T>(n, [&](I i) { return a[i]; }); \
  y[7] = kw::prod<T>(n, [&](I i) { return 1 + a[i] / 4096; }); \
  const auto m = kw::max_sum<T>(n, [&](I i) { return a[i]; }); \
  y[8] = m.v + kw::log(m.s); \
  const auto w = kw::welford<T>(n, [&](I i) { return a[i]; }); \
  y[9] = w.v; \
  y[10] = w.s / n;
"""
ON_CPU = f"""#include <kw/parallel.h>
{ROWS}
extern "C" void rows(const float* x, float* y, long long rows, long long n) {{
  typedef long long I;
  constexpr int T = 64;
  kw::parallel<2>(rows, [=](long long r) {{
    const float* a = x + r * n;
    float* b = y + 11 * r;
    ALL(a, b, n)
  }});
}}
"""
ON_GPU = f"""#include <kw/parallel.h>
#include <kw/scan.h>
{ROWS}
__global__ void kernel(const float* x, float* y, float* z, int rows, int n) {{
  typedef int I;
  constexpr int T = 64;
  const int r = blockIdx.x * 2 + threadIdx.x / T;
  const float* a = x + (long long)(r < rows ? r : 0) * n;
  float b[11];
  ALL(a, b, n)
  if (threadIdx.x % T == 0 && r < rows)
    for (int i = 0; i < 11; ++i) y[11 * r + i] = b[i];
}}
__global__ void scanned(const float* x, float* y, int n) {{
  const long long row = (long long)blockIdx.x * n;
  kw::scan<64>(n, [&](int i) {{ return x[row + i]; }},
               [&](int i, float s) {{ y[row + i] = s; }});
}}
"""
LAUNCHES = """
extern "C" void rows(const float* x, float* y, float* z, int rows, int n) {
  emulated::launch((rows + 1) / 2, 128, 0, [&] { kernel(x, y, z, rows, n); });
  emulated::launch(rows, 64, 0, [&] { scanned(x, z, n); });
}
"""


def wanted(x: torch.Tensor) -> torch.Tensor:
    d = x.double()
    top = torch.where(d.isnan(), torch.tensor(-torch.inf), d).amax(1)
    parts = [d.sum(1), d.mean(1), d.amax(1), d.amin(1), top, d.argmax(1), d.argmin(1)]
    parts += [(1 + x / 4096).double().prod(1), torch.logsumexp(d, 1)]
    return torch.stack([*parts, d.mean(1), d.var(1, unbiased=False)], 1)


def draws(n: int) -> torch.Tensor:
    x = torch.randn(7, n, generator=torch.Generator().manual_seed(n)) * 3
    x[1] += 1000
    x[2] = 0.1
    x[3, n // 2] = torch.nan
    x[4, n // 3] = torch.inf
    x[5, : n // 2] = -torch.inf
    x[6] = -torch.inf
    return x


def agree(got: torch.Tensor, x: torch.Tensor) -> None:
    want = wanted(x)
    for i in range(7):
        finite = got[i].isfinite() & want[i].isfinite()
        # Where the library's log-sum-exp, mean and variance are not a number, so are ours.
        assert torch.equal(got[i].isnan(), want[i].isnan()) or i in (4, 5, 6), (i, got[i], want[i])
        error = (got[i] - want[i]).abs()
        bound = 2e-6 * want[i].abs() + 1e-5
        bound[0] += 2e-7 * x[i][x[i].isfinite()].abs().sum()
        assert (error <= bound)[finite].all(), (i, got[i], want[i])
        assert got[i, 5:7].equal(want[i, 5:7].float())


def test_reductions_on_a_cpu(tmp_path: pathlib.Path) -> None:
    lib = compiled(ON_CPU, tmp_path, f"-I{headers.FOLDER}")
    for n in (1, 5, 64, 2049, 5003):
        x = draws(n)
        got = torch.zeros(7, 11)
        lib.rows(pointer(x), pointer(got), ctypes.c_longlong(7), ctypes.c_longlong(n))
        agree(got, x)


# Sums that a sum in the elements' own type would cut.
WHOLE = r"""
#include <kw/reduce.h>
#include <kw/scan.h>
extern "C" void whole(const int* x, const unsigned char* b, double* y, long long n) {
  y[0] = kw::sum(n, [&](long long i) { return x[i] > 0; });
  y[1] = kw::sum(n, [&](long long i) { return b[i]; });
  y[2] = kw::sum<0>(n, [&](long long i) { return x[i]; });
  y[3] = kw::sum(n, [&](long long i) { return x[i]; });
  y[4] = kw::mean(n, [&](long long i) { return x[i]; });
  y[5] = kw::prod(2, [&](long long i) { return x[i]; });
  kw::scan(n, [&](long long i) { return x[i] > 0; }, [&](long long, long long s) { y[6] = s; });
}
"""


def test_whole_numbers_are_added_up_whole(tmp_path: pathlib.Path) -> None:
    lib = compiled(WHOLE, tmp_path, f"-I{headers.FOLDER}")
    n, value = 1000, 9_999_999
    x = torch.full((n,), value, dtype=torch.int32)
    b = torch.full((n,), 200, dtype=torch.uint8)
    y = torch.zeros(7, dtype=torch.float64)
    lib.whole(pointer(x), pointer(b), pointer(y), ctypes.c_longlong(n))
    assert y.tolist() == [n, 200 * n, n * value, n * value, value, value**2, n]


def test_reductions_of_a_block(tmp_path: pathlib.Path) -> None:
    source = headers.inlined(ON_GPU) + LAUNCHES
    lib = compiled(source, tmp_path, "-O1", "-include", str(EMULATED))
    for n in (1, 5, 64, 1025, 3001):
        x = draws(n)
        got, scanned = torch.zeros(7, 11), torch.zeros(7, n)
        lib.rows(pointer(x), pointer(got), pointer(scanned), 7, n)
        agree(got, x)
        want = x.double().cumsum(1)
        same = (scanned == want) | (scanned.isnan() & want.isnan())
        assert (same | ((scanned - want).abs() <= 1e-6 * want.abs() + 1e-4)).all()


@nvrtc
def test_a_block_compiles_for_a_gpu() -> None:
    source = ON_GPU.replace("__global__", 'extern "C" __global__')
    image, _ = kernelwright.nvrtc(headers.inlined(source), "sm_90a")
    assert len(image) > 10_000


@pytest.mark.parametrize("name", sorted(headers.texts()))
def test_each_header_stands_alone(name: str, tmp_path: pathlib.Path) -> None:
    text = headers.texts()[name]
    assert "\\" not in text and '"""' not in text and text.startswith("//")
    source = f"#include <{name}>\n"
    assert headers.inlined(source).count("#ifndef KW_") == len(headers.needed(name))
    assert not headers._INCLUDE.search(headers.inlined(source))
    flags = ("-Wall", "-Werror", "-Wno-unused-function", f"-I{headers.FOLDER}")
    compiled(f"{source}#include <{name}>\nvoid nothing() {{}}\n", tmp_path, *flags)


def examples() -> list[tuple[str, str]]:
    """Returns the examples in the headers' own comments."""
    found = []
    for name, text in headers.texts().items():
        front = text[: text.index("#ifndef")]
        for block in re.findall(r"(?:^//   .*\n(?:^//\n(?=//   ))?)+", front, re.M):
            found.append((name, re.sub(r"^//(   )?", "", block, flags=re.M)))
    return found


@pytest.mark.parametrize(("name", "text"), examples(), ids=lambda v: v if len(v) < 20 else "")
def test_examples_of_the_comments_compile(name: str, text: str, tmp_path: pathlib.Path) -> None:
    includes = "".join(f"#include <{n}>\n" for n in headers.texts() if "launch" not in n)
    if re.search("__global__|threadIdx|blockIdx", text):
        if not kernelwright.nvrtc_version():
            pytest.skip("there is no NVRTC here")
        if "static int known" in text or "part[" in text:
            pytest.skip("it is a part of two kernels")
        if "__global__" not in text:
            text = f"__global__ void f(const float* row, int n) {{\n{text}\n}}"
        kernelwright.nvrtc(headers.inlined(includes + text), "sm_90a")
        return
    if name in ("kw/launch.h", "kw/team.h"):
        pytest.skip("it is code for nvcc")
    taken = "const float* x, const float* g, float* y, long long rows, long long n, long long i"
    compiled(f"{includes}void f({taken}) {{\n{text}}}\n", tmp_path, f"-I{headers.FOLDER}")


@named(LANGUAGES["cpp"])
def test_the_pages_kernels_are_right(name: str, text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "best.py"
    path.write_text(inline_loader.standalone(text) + CHECK)
    torch.manual_seed(0)
    x = torch.randn(37, 1000)
    torch.save((x, REFERENCES[name](x.double())), tmp_path / "both.pt")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(path), str(tmp_path / "both.pt")],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


CHECK = """
import sys
x, want = torch.load(sys.argv[1])
got = ModelNew()(x)
assert (got - want).abs().max() < 1e-5 * want.abs().max() + 1e-7, (got - want).abs().max()
assert "kernelwright" not in sys.modules
"""


@nvrtc
@named(LANGUAGES["cuda"])
def test_the_pages_kernels_compile(
    server: Any, name: str, text: str, tmp_path: pathlib.Path
) -> None:
    found = build(server, text, tmp_path, device="cuda", arch="sm_90a")
    assert found.status == "", found
    (kernel,) = found.build.kernels
    assert kernel.registers > 8 and kernel.spill_store_bytes == 0
    out = build(server, inline_loader.standalone(text), tmp_path, device="cuda", arch="sm_90a")
    assert out.status == "" and out.build.form == "native", out


def test_a_good_kernel_is_short() -> None:
    for text, _ in CANDIDATES:
        assert len(text) / 2.6 <= 400 and text.count("\n") <= 40


SUM = """
extern "C" void row_sum(const float* x, float* y, long long n) {
  *y = kw::sum(n, [&](long long i) { return x[i]; });
}
"""
CANDIDATE = f'''import torch
from kernelwright import native

lib = native(language="cpp", source=r"""
#include <kw/reduce.h>
{SUM}""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(())
        lib.row_sum(x, y, x.numel())
        return y
'''


def test_a_builder_finds_them(server: Any, tmp_path: pathlib.Path) -> None:
    found = build(server, CANDIDATE, tmp_path)
    assert found.status == "", found
    said = [d.message for d in found.build.vectorised]
    assert any(re.match(r"kw/reduce\.h:\d+: loop vectorized", s) for s in said), said
    # What is wrong in a lambda is told where it stands, and no folder of ours.
    wrong = build(server, CANDIDATE.replace("return x[i]", "return z[i]"), tmp_path)
    assert wrong.status == "build_failed" and "line 8" in wrong.reason, wrong.reason
    assert headers.FOLDER not in wrong.build.log
    none = build(server, CANDIDATE.replace("kw/reduce.h", "kw/nothing.h"), tmp_path)
    assert "kw/nothing.h: No such file" in none.reason


def test_other_headers_are_another_build(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"#include <kw/reduce.h>\n{SUM}"

    def anew() -> tuple[str, str]:
        for known in (headers.texts, headers.digest, headers._body, headers._whole):
            known.cache_clear()
        request = form_native.request_of(headers.inlined(source), (), "f")
        return object_cache.build_key(CANDIDATE, "cpu", "", False), object_cache.object_key(request)

    before = anew()
    shutil.copytree(headers.FOLDER, tmp_path / "include")
    monkeypatch.setattr(headers, "FOLDER", str(tmp_path / "include"))
    try:
        assert anew() == before
        with open(tmp_path / "include" / "kw" / "reduce.h", "a") as f:
            f.write("// another\n")
        assert not set(anew()) & set(before)
    finally:
        monkeypatch.undo()
        assert anew() == before


def test_nobody_puts_others_in_their_place(tmp_path: pathlib.Path) -> None:
    (tmp_path / "kw").mkdir()
    (tmp_path / "kw" / "reduce.h").write_text("#error another\n")
    source = f"#include <kw/reduce.h>\n{SUM}"
    given = {"name": "f", "cpp_sources": source, "extra_include_paths": [str(tmp_path)]}
    artifacts.of_file(f"SOURCE = r'''{source}'''")
    try:
        request = form_extension.inline_request(given)
    finally:
        artifacts.of_file("")
    assert request["sources"] == [headers.inlined(source)]
    assert "files" not in request


def test_what_is_inlined() -> None:
    text = (
        '// #include <kw/exp.h>\n/*\n#include <kw/exp.h>\n*/\n#include "kw/tanh.h" // here\n'
        "#include <kw/exp.h>\n#include <kw/other.h>\n#include <cmath>\nint x;\n"
    )
    got = headers.inlined(text)
    begins = (
        '// #include <kw/exp.h>\n/*\n#include <kw/exp.h>\n*/\n// #include "kw/tanh.h" // here\n'
    )
    assert got.startswith(begins + "#ifndef KW_BASE_H")
    ends = "\n// #include <kw/exp.h>\n#include <kw/other.h>\n#include <cmath>\nint x;\n"
    assert got.endswith(ends) and headers.inlined(got) == got
    for name in ("BASE", "EXP", "TANH"):
        assert got.count(f"#define KW_{name}_H") == 1
    # What may be left out does not count for who comes behind it.
    text = "#ifdef A\n#include <kw/exp.h>\n#endif\n#include <kw/exp.h>\n#include <kw/exp.h>\n"
    assert headers.inlined(text).count("#define KW_EXP_H") == 2
    # What follows a name is not lost: it may open a comment.
    for odd in (
        "#include <kw/exp.h> /* a */",
        "#include <kw/exp.h> // a \\\n",
        "#include <kw/exp.h> b",
    ):
        assert headers.inlined(odd) == odd


INCLUDE = "#include <kw/exp.h>"
F = 'extern "C" void f(const float* x, float* y) { *y = kw::exp(*x * SCALE); }'
WAYS = {
    "raw": f'source=r"""\n{INCLUDE}\n{F}"""',
    "plain": f"source='''{INCLUDE}\n{F}'''",
    "joined": f'source="{INCLUDE}\\n" {F!r}',
    "added": f'source="{INCLUDE}\\n" + {F!r}',
    "f-string": 'source=f"""\n' + INCLUDE + "\n" + F.replace("{", "{{").replace("}", "}}") + '"""',
    "replaced": f'source="""\n{INCLUDE}\n{F}""".replace("MOVE", "SCALE")',
}
OF_ONE = '''"""It says #include <kw/exp.h> in passing.
#include <kw/exp.h>
"""
import torch
from kernelwright import native

lib = native(SOURCE, flags=("-DSCALE=2.0f",))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, y)
        return y
'''


@pytest.mark.parametrize("way", WAYS)
def test_a_string_that_includes_one_is_written_out(way: str) -> None:
    text = OF_ONE.replace("SOURCE", WAYS[way])
    got = headers.in_python(text)
    assert got.startswith(text[: text.index("import torch")])
    assert got.endswith(text[text.index("\n\n\nclass") :])
    space: dict[str, Any] = {}
    sources: list[str] = []
    code = re.sub(
        r"from kernelwright import native", "native = lambda source, flags: note(source)", got
    )
    exec(code.partition("class ModelNew")[0], {"note": sources.append}, space)
    (source,) = sources
    assert source == headers.inlined(source)
    assert source.count("#define KW_EXP_H") == 1 and F in source
    assert headers.in_python(got) == got


def test_other_files_are_unchanged() -> None:
    for text in ("import torch\nx = 'kw/exp.h'\n", 'x = r"""#include <kw/none.h>"""\n'):
        assert headers.in_python(text) == text
    with pytest.raises(SyntaxError):
        headers.in_python("( # kw/exp.h")
