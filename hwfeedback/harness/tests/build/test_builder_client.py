"""Building for real, in sandboxed builders."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
import torch
from test_cuda_driver import in_a_process

from kwharness.base.configs import BuilderConfig, CandidateConfig, ReferenceConfig
from kwharness.base.requests import Candidate
from kwharness.base.verdicts import Kernel
from kwharness.build import (
    build_process,
    builder_client,
    compilers,
    diagnostics,
    form,
    object_cache,
    reaches,
)
from kwharness.machine import toolchain
from kwharness.torch_compile import inductor

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

NATIVE = '''import torch
from kernelwright import native

lib = native(source=r"""
#include <math.h>
extern "C" void scale(const float* x, float* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++)
        y[i] = 2 * x[i];
    for (long long i = 1; i < n; i++)
        y[i] = sinf(y[i - 1]) * 0 + y[i];
}
""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, y, x.numel())
        return y
'''
INLINE = '''import torch
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) {
    return 2 * x;
}
"""
module = load_inline("twice_module", source, functions=["twice"], extra_cflags=["-O1"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.twice(x)
'''


def build(server, text, folder, **more):
    return builder_client.build(server, Candidate(text, "cpp"), str(folder), mode="weak", **more)


def load(server, text, built):
    """Loads a build in a candidate's sandbox. Returns the worker's answer."""
    fds = object_cache.open_all(built.artifacts)
    with server.spawn(CandidateConfig(sandbox="weak")) as worker:
        worker.channel.send(
            {
                "op": "load",
                "source": text,
                "artifacts": [a.asked() for a in built.artifacts],
                "threads": 1,
            },
            fds,
        )
        for fd in fds:
            os.close(fd)
        answer, _ = worker.channel.recv(120)
    return answer


def test_native(server, tmp_path):
    built = build(server, NATIVE, tmp_path)
    assert (built.status, built.build.form) == ("", "native"), built
    assert built.build.vectorised[0].line in (8, 9)
    assert "vectorized" in built.build.vectorised[0].message
    assert [d.line for d in built.build.missed] == [10]
    assert load(server, NATIVE, built)["ok"]
    json.dumps(built.to_json())


def test_an_outer_loop_is_not_missed(server, tmp_path):
    text = NATIVE.replace(
        "long long n) {",
        """long long n) {
  for (long long r = 0; r < 2; r++) {
    for (long long i = 0; i < n; i++) y[i] = x[i] + r;
    for (long long i = 0; i < n; i++) y[i] = y[i] * x[i];
  }""",
        1,
    )
    assert text != NATIVE
    built = build(server, text, tmp_path)
    assert built.status == "", built
    assert len(built.build.missed) == 1  # the one that NATIVE has


def test_the_same_code_is_known_by_what_was_built(server, tmp_path):
    code = build(server, NATIVE, tmp_path).build.code
    assert re.fullmatch("[0-9a-f]{64}", code)
    c = re.search(r'r"""(.*?)"""', NATIVE, re.DOTALL)[1]
    first = c.index("{") + 1
    for same in (c + "// said once more\n", c[:first] + " /* here */" + c[first:]):
        assert build(server, NATIVE.replace(c, same), tmp_path).build.code == code
    other = [
        NATIVE.replace(c, c[:first] + " n -= 1;" + c[first:]),
        # The same object, and other programs: each can read its own text.
        NATIVE + "\nLIMIT = 3\n",
        NATIVE + "\n# a remark\n",
        NATIVE + "\n",
        "\ufeff" + NATIVE,
    ]
    codes = [build(server, text, tmp_path).build.code for text in other]
    assert len({code, *codes}) == 1 + len(other)


def test_cache_and_its_repair(server, tmp_path):
    built = build(server, NATIVE, tmp_path)
    start = time.monotonic()
    again = build(server, NATIVE, tmp_path)
    print(f"\na cached build: {(time.monotonic() - start) * 1e3:.1f} ms")
    assert again.build.cached and again.artifacts == built.artifacts
    changed = build(server, NATIVE + "\n# a remark\n", tmp_path)
    assert not changed.build.cached and changed.artifacts == built.artifacts, (
        "same C++, same object"
    )
    assert again.build.code == built.build.code != changed.build.code
    path = built.artifacts[0].path
    with open(path, "r+b") as f:
        f.seek(200)
        f.write(b"corrupt")
    with pytest.raises(OSError):
        object_cache.open_all(built.artifacts)
    repaired = build(server, NATIVE, tmp_path)
    assert not repaired.build.cached
    assert load(server, NATIVE, repaired)["ok"]
    with open(path.removesuffix(".so") + ".json", "w") as f:
        f.write("{")
    for record in (tmp_path / "builds").iterdir():
        record.write_text("not JSON")
    assert build(server, NATIVE, tmp_path).status == ""


def test_compiler_errors_have_the_candidates_lines(server, tmp_path):
    built = build(server, NATIVE.replace("y[i] = 2 * x[i];", "y[i] = 2 * z[i];"), tmp_path)
    assert built.status == "build_failed"
    assert built.build.errors[0].line == 9
    assert "z" in built.build.errors[0].message
    assert "line 9" in built.reason
    log = built.build.log  # which quotes the line, too
    assert "candidate.py:9:" in log and "    9 | " in log and "source0" not in log, log
    assert build(server, NATIVE.replace("sinf(", "missing("), tmp_path).build.errors[0].line == 11


@pytest.mark.parametrize(
    "text,status,words",
    [
        (NATIVE.replace("import native\n", "import native\nimport os, sys, ctypes, hashlib\n"), "", ""),  # noqa: E501
        (NATIVE + "torch.jit.script(lambda x: x)(1)\n1 / 0\n", "rejected", "torch.jit.script is not allowed"),  # noqa: E501
        ("class ModelNew(:\n", "build_failed", "line 1"),
        (NATIVE.replace("lib = ", "1 / 0\nlib = "), "build_failed", "at line 4"),
        (NATIVE.replace('native(source=', 'native(flags=["-fplugin=/tmp/x.so"], source='), "rejected", "-fplugin"),  # noqa: E501
        (NATIVE.replace('native(source=', 'native(flags=["-I/etc"], source='), "", ""),
        (NATIVE.replace("import native\n", "import native\nimport torch.nn as nn\nwhile True:\n    nn.ReLU()\n"), "timed_out", "longer"),  # noqa: E501
        (NATIVE.replace("import native\n", "import native\nwhile True:\n    torch.empty(1).set_(torch.empty(1))\n    x = []\n    x.append(x)\n    break\n"), "", ""),  # noqa: E501
    ],
)  # fmt: skip
def test_faults_are_statuses(server, tmp_path, monkeypatch, text, status, words):
    monkeypatch.setattr(build_process, "IMPORT_TIMEOUT", 2.0)
    built = build(server, text, tmp_path, forbids=True)
    assert built.status == status, built
    assert words in built.reason


def test_a_compiler_that_vanished_is_nobodys_fault(server, tmp_path, monkeypatch):
    for gone in ("", str(tmp_path / "g++")):
        monkeypatch.setattr(toolchain, "compiler", lambda gone=gone: gone)
        with pytest.raises(toolchain.Missing, match="no C\\+\\+ compiler here: install one"):
            build(server, NATIVE, tmp_path)


def test_a_quotation_mark_without_its_other_is_refused(server, tmp_path):
    text = INLINE.replace('["-O1"]', """['-DX="']""")
    built = builder_client.build(server, Candidate(text), str(tmp_path))
    assert built.status == "rejected" and "quotation mark" in built.reason


def test_a_name_of_wide_letters(server, tmp_path):
    text = NATIVE.replace("native(source=", f'native(name="{chr(0x2000B) * 64}", source=')
    built = builder_client.build(server, Candidate(text), str(tmp_path))
    assert built.status == "", built.reason
    for fd in object_cache.open_all(built.artifacts):
        os.close(fd)


def test_a_candidate_cannot_poison_the_cache(server, tmp_path):
    """A builder that has run a candidate refuses to compile: what it made could be anything."""
    with server.spawn(BuilderConfig(sandbox="weak")) as worker:
        worker.channel.send({"op": "record", "source": NATIVE})
        recorded, _ = worker.channel.recv(120)
        worker.channel.send({"op": "compile", "request": recorded["requests"][0]})
        answer, fds = worker.channel.recv(120)
    assert not answer["ok"] and not fds


def test_functions_called_while_importing(server, tmp_path):
    text = NATIVE.replace(
        "class ModelNew", "table = torch.zeros(4)\nlib.scale(table, table, 4)\n\n\nclass ModelNew"
    )
    built = build(server, text, tmp_path)
    assert built.status == ""
    assert load(server, text, built)["ok"]


def test_nothing_to_build(server, tmp_path):
    text = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"  # noqa: E501
    built = build(server, text, tmp_path)
    assert (built.status, built.build.form, built.artifacts) == ("", "none", [])


def test_parse_and_export(server):
    assert builder_client.parse(server, NATIVE, "candidate", "weak").problems == []
    assert builder_client.parse(server, "(" * 300_000, "candidate", "weak").problems
    assert "class _native:" in builder_client.export(server, NATIVE, "weak")
    with pytest.raises(ValueError):
        builder_client.export(server, "(", "weak")


@pytest.mark.slow  # half a minute; every day exploits and an honest kernel are built in this form
def test_load_inline(server, tmp_path):
    """The first of its kind: nothing is precompiled."""
    start = time.monotonic()
    built = build(server, INLINE, tmp_path)
    print(f"\nload_inline built in {time.monotonic() - start:.1f} s")
    assert (built.status, built.build.form) == ("", "load_inline"), built
    assert load(server, INLINE, built)["ok"]


@pytest.mark.slow
def test_load_inline_with_a_precompiled_header(server, tmp_path):
    start = time.monotonic()
    header = object_cache.light_header(str(tmp_path))
    assert build_process.warm(server, header, ["-O1"], "weak", cuda=False)
    warmed = time.monotonic()
    built = build(server, INLINE, tmp_path)
    print(f"\nheader {warmed - start:.1f} s, then load_inline {time.monotonic() - warmed:.1f} s")
    assert built.status == ""
    failed = build(server, INLINE.replace("2 * x;", "2 * z;"), tmp_path)
    assert failed.build.errors[0].line == 7


@pytest.mark.slow
def test_inductor_starts_warm(tmp_path):
    from process_layer import ask, obedient_server

    folder = inductor.warm(str(tmp_path))
    assert folder and inductor.warm(str(tmp_path)) == folder
    client, process = obedient_server(tmp_path)
    try:
        config = ReferenceConfig("weak", 2, preimport=["compile"], inductor_cache=folder)
        with client.spawn(config) as worker:
            code = "import torch, time; t = time.time(); r = torch.compile(torch.nn.GELU())(torch.ones(3)).tolist(); r = [time.time() - t, r]"  # noqa: E501
            seconds, values = ask(worker, code, 120)
            print(f"\nfirst torch.compile in a worker: {seconds:.1f} s")
            assert torch.allclose(torch.tensor(values), torch.nn.functional.gelu(torch.ones(3)))
            assert not ask(
                worker,
                "import glob; r = glob.glob('/tmp/torchinductor*/precompiled_headers/*.gch')",
            )
        assert client.ping().threads == 1
    finally:
        client.close()
        process.wait(120)


PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4rowsPKfPfi' for 'sm_90a'
ptxas info    : Function properties for _Z4rowsPKfPfi
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'small' for 'sm_90a'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_what_ptxas_says() -> None:
    first, second = diagnostics.resources(PTXAS)
    assert first == Kernel(
        "_Z4rowsPKfPfi",
        "sm_90a",
        registers=26,
        shared_bytes=128,
        stack_bytes=8,
        spill_store_bytes=12,
        spill_load_bytes=16,
    )
    assert second == Kernel("small", "sm_90a", registers=8)
    assert diagnostics.resources("Used 9 registers") == []


LARGE = """
__global__ void large(float* y, int i) {
  __shared__ float part[102400];
  part[threadIdx.x] = i;
  __syncthreads();
  y[threadIdx.x] = part[(threadIdx.x + i) % 102400];
}
"""
UNKNOWN = """
__global__ void unknown(float* y, int i) {
  asm("bogus.f32 %0, %0;" : "+f"(y[i]));
}
"""
REFUSED = [
    pytest.param(LARGE, "uses too much shared data (0x64000 bytes, 0x38c00 max)", id="shared"),
    pytest.param(UNKNOWN, "Not a name of any known instruction: 'bogus'", id="instruction"),
]


def alone(source: str) -> str:
    """The same kernel as one that is launched from Python."""
    return source.replace("__global__", 'extern "C" __global__')


@pytest.mark.skipif(not toolchain.nvcc(), reason=toolchain.NO_NVCC)
@pytest.mark.parametrize("form", ["host", "launched"])
@pytest.mark.parametrize("source,says", REFUSED)
def test_what_ptxas_refuses_is_named(server, tmp_path, source, says, form):
    name = re.search(r"void (\w+)", source)[1]
    host = f'extern "C" void run(float* y, cudaStream_t s) {{ {name}<<<1, 32, 0, s>>>(y, 3); }}\n'
    text = NATIVE.replace("native(source=", 'native(language="cuda", source=')
    c = re.search(r'r"""(.*?)"""', text, re.DOTALL)[1]
    text = text.replace(c, alone(source) if form == "launched" else source + host)
    built = build(server, text, tmp_path, arch="sm_90a")
    assert built.status == "build_failed"
    first = built.build.errors[0]
    assert first.line == 0 and first.message.endswith(says)
    assert built.reason == f"native does not compile: {first.message}"


@pytest.mark.parametrize("source,says", REFUSED)
def test_what_the_ptxas_of_nvrtc_refuses_is_named(monkeypatch, tmp_path, source, says):
    monkeypatch.setattr(toolchain, "nvcc", lambda: "")
    request = {"source": alone(source), "flags": [], "arch": "sm_90a"}

    def work() -> str:
        done = compilers.compile_kernels(request, str(tmp_path))
        return json.dumps([done.object, "\0" in done.log, done.errors[0]])

    made, ends, (source_number, line, message) = json.loads(in_a_process(work))
    assert (made, ends, source_number, line) == ("", False, 0, 0)
    assert message.endswith(says)


@pytest.mark.timeout(120)  # an expression that backtracks would take for ever
def test_what_ptxas_reports_is_no_error() -> None:
    assert diagnostics.errors(PTXAS) == [] and diagnostics.last_words(PTXAS) == ""
    assert diagnostics.last_words(PTXAS + "something broke\n") == "something broke"
    for line, says in (
        ("ptxas fatal   : Unresolved extern function 'f'", "Unresolved extern function 'f'"),
        ("nvcc fatal   : Unsupported gpu architecture 'x'", "Unsupported gpu architecture 'x'"),
        ("ptxas application ptx input, line 28; error   : Not a name", "Not a name"),
        ("nvlink error   : Undefined reference to 'f' in 'x'", "Undefined reference to 'f' in 'x'"),
    ):
        assert diagnostics.errors(PTXAS + line) == [(0, 0, says)]
    long = "ptxas " + " " * 5000 + ", line 1" * 100_000
    assert diagnostics.errors(long) == []


def test_errors_of_nvcc() -> None:
    log = 'source0.cu(20): error: identifier "q" is undefined\n1 error detected\n'
    full = "ld: final link failed: No space left on device\ncollect2: error: ld returned 1"
    assert "the object is too large" in diagnostics.errors(full)[0][2]
    assert diagnostics.errors(log) == [(0, 20, 'identifier "q" is undefined')]


def test_symbols_of_the_dispatcher_are_told_from_those_of_headers(tmp_path):
    bad = [
        "_ZN2at4_ops8_softmax10redispatchEN3c1014DispatchKeySetERKNS_6TensorElb",
        "_ZN3c1010Dispatcher13realSingletonEv",
        "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb",
        "_ZN3c104impl20TorchDispatchModeTLS9pop_stackEv",
        "_ZN2at20enableRecordFunctionEb",
        "_ZN2at24get_record_function_tls_Ev",
        "_ZN2at25clearThreadLocalCallbacksEv",
        "_ZN2at4cuda8_softmaxERKNS_6TensorElb",
        "_ZN2at4cuda6mm_outERNS_6TensorERKS1_S4_",
        "aoti_torch_cuda_mm_out",
    ]
    good = [  # of torch::empty_like, torch::zeros, RECORD_FUNCTION, TORCH_LIBRARY
        "_ZN2at4_ops10empty_like4callERKNS_6TensorE",
        "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE",
        "_ZN2at14RecordFunctionC1ENS_11RecordScopeE",
        "_ZN5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE",
        # Of at::cuda::getCurrentDeviceProperties, canUse32BitIndexMath, and the stable shim.
        "_ZN2at4cuda26getCurrentDevicePropertiesEv",
        "_ZN2at4cuda6detail20canUse32BitIndexMathERKNS_10TensorBaseEl",
        "aoti_torch_get_data_ptr",
    ]
    text = "".join(f'void f{i}() asm("{n}");\n' for i, n in enumerate([*bad, *good]))
    text += "void all() {" + "".join(f"f{i}();" for i in range(len([*bad, *good]))) + "}\n"
    (tmp_path / "source.cpp").write_text(text)
    command = [toolchain.compiler(), "-shared", "-fPIC", "source.cpp", "-o", "built.so"]
    assert compilers.run(command, str(tmp_path)) == (0, "")
    assert reaches.reaches(str(tmp_path / "built.so"), form.LOAD_INLINE) == sorted(bad)
