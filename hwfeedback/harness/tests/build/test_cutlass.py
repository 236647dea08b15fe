"""Candidates that include CUTLASS's headers. Most is seen on a checkout of two small headers, which
compile in a moment; the example in CuTe is compiled with CUTLASS itself, where CUTLASS_PATH names
one.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from test_builder_client import build

import kernelwright
from kwharness.base.configs import BuilderConfig
from kwharness.base.for_builder import Run
from kwharness.build import artifacts, builder_client, compilers, form_native
from kwharness.export import inline_loader
from kwharness.machine import toolchain
from kwharness.referee import doctor
from kwharness.standalone import looks
from kwharness.workers import stand_in_compiler

EXAMPLE = (
    pathlib.Path(__file__).parents[4] / "examples" / "candidates" / "softmax_cute.py"
).read_text()
CUTLASS = os.environ.get("CUTLASS_PATH", "") if kernelwright.cutlass_folders() else ""
compiles = pytest.mark.skipif(not toolchain.nvcc(), reason=toolchain.NO_NVCC)
whole = pytest.mark.skipif(
    not CUTLASS, reason="there is no CUTLASS here: CUTLASS_PATH names no checkout of it"
)
SOURCE = r"""
#include <cute/tensor.hpp>
__global__ void rows(float* x) { x[threadIdx.x] = cute::value(); }
extern "C" void run(float* x, cudaStream_t s) { rows<<<1, 32, 0, s>>>(x); }
"""
CANDIDATE = f'''import torch
from kernelwright import native

lib = native(language="cuda", source=r"""{SOURCE}""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        lib.run(x)
        return x
'''
LAUNCHED = CANDIDATE.replace("__global__ void rows", 'extern "C" __global__ void rows').replace(
    'extern "C" void run(float* x, cudaStream_t s) { rows<<<1, 32, 0, s>>>(x); }', ""
)
INLINE = f'''import torch
from torch.utils.cpp_extension import load_inline

source = r"""{SOURCE.split('extern "C"')[0]}
void run(torch::Tensor x) {{ rows<<<1, 32>>>(x.data_ptr<float>()); }}
"""
lib = load_inline("rows", "void run(torch::Tensor);", source, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        lib.run(x)
        return x
'''
FORMS = {"native": CANDIDATE, "launched": LAUNCHED, "load_inline": INLINE}
# Where nothing says that a function is the device's, and nvcc must be told that it may be.
HEADER = """#pragma once
namespace cute {
template <class T> struct is { constexpr operator bool() const { return true; } };
__host__ __device__ inline float value() { if constexpr (is<int>{}) return VALUE; return 0; }
}
"""


@pytest.fixture
def checkout(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns what CUTLASS_PATH names: a checkout of release 4.2.1, with a file beside it."""
    root = tmp_path / "cutlass"
    for folder in ("include/cute", "include/cutlass", "tools/util/include"):
        (root / folder).mkdir(parents=True)
    (root / "include/cute/tensor.hpp").write_text(HEADER.replace("VALUE", "2"))
    (root / "include/cutlass/version.h").write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n"
    )
    (root / "beside.hpp").write_text("#define BESIDE 1\n")
    monkeypatch.setenv("CUTLASS_PATH", str(root))
    return root


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLASS_PATH", raising=False)


def built(server: Any, text: str, folder: pathlib.Path, arch: str = "sm_90a") -> dict[str, Any]:
    return build(server, text, folder / "cache", device="cuda", arch=arch)


@pytest.mark.parametrize(
    ("source", "header"),
    [
        ("#include <cute/tensor.hpp>\n", "cute/tensor.hpp"),
        ('int a;\n \t# include\t"cutlass/gemm/device/gemm.h" // x\n', "cutlass/gemm/device/gemm.h"),
        ("// #include <cute/tensor.hpp>\n", ""),
        ("#include <execute/tensor.hpp>\n#include <cute.h>\nint cute;", ""),
        ("#include <cute/../../secret>", "cute/../../secret"),
        ("#include <cute/" + "a" * 300 + ".hpp>", ""),
    ],
)
def test_who_asks_for_cutlass(source: str, header: str) -> None:
    assert kernelwright.cutlass_header(source) == header


def test_where_it_is(checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath(checkout)
    folders = [f"{real}/include", f"{real}/tools/util/include"]
    assert kernelwright.cutlass_folders() == folders
    assert kernelwright.cutlass_version(folders) == "4.2.1"
    assert doctor._cutlass() == (True, f"4.2.1, {real}")
    link = checkout.parent / "link"
    link.symlink_to(checkout)
    monkeypatch.setenv("CUTLASS_PATH", str(link))
    assert kernelwright.cutlass_folders() == folders
    # Its headers alone are shown, and nothing that a link in it leads to.
    (checkout / "tools/util/include").rmdir()
    (checkout / "tools/util/include").symlink_to("/etc")
    assert kernelwright.cutlass_folders() == folders[:1]


def test_where_it_is_not(checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "include/cute/tensor.hpp").unlink()
    said = f"CUTLASS_PATH is {checkout}, where there is no include/cute/tensor.hpp"
    assert kernelwright.cutlass_folders() == [] and toolchain.cutlass() == ""
    assert doctor._cutlass() == (False, said)
    assert said in kernelwright.without_cutlass(SOURCE)
    for value in ("", "/", "/etc/passwd", "\n"):
        monkeypatch.setenv("CUTLASS_PATH", value)
        assert kernelwright.cutlass_folders() == [] and kernelwright.without_cutlass(SOURCE)
    monkeypatch.delenv("CUTLASS_PATH")
    assert doctor._cutlass()[0] and "set CUTLASS_PATH" in doctor._cutlass()[1]
    assert kernelwright.without_cutlass("#include <cuda_fp16.h>") == ""


def test_a_changed_checkout_is_another(checkout: pathlib.Path) -> None:
    seen = {toolchain.cutlass()}
    header = checkout / "include/cute/tensor.hpp"
    header.write_text(HEADER.replace("VALUE", "3 "))
    seen.add(toolchain.cutlass())
    (checkout / "include/cute/more.hpp").write_text("")
    seen.add(toolchain.cutlass())
    version = checkout / "include/cutlass/version.h"
    version.write_text(version.read_text().replace("PATCH 1", "PATCH 2"))
    seen.add(toolchain.cutlass())
    (checkout / "include/cute/nowhere.hpp").symlink_to("nothing")
    assert len(seen) == 4 and toolchain.cutlass() in seen


@compiles
@pytest.mark.parametrize("form", ["native", "launched"])
def test_another_cutlass_is_another_object(server: Any, checkout: pathlib.Path, form: str) -> None:
    text, folder = FORMS[form], checkout.parent
    first = built(server, text, folder)
    assert first.status == "", first
    assert first.build.kernels[0].registers > 1
    assert built(server, text, folder).build.cached
    (checkout / "include/cute/tensor.hpp").write_text(HEADER.replace("VALUE", "7"))
    second = built(server, text, folder)
    assert second.status == "" and not second.build.cached, second
    assert second.artifacts[0].sha256 != first.artifacts[0].sha256
    # Who includes none of its headers does not notice.
    plain = text.replace("#include <cute/tensor.hpp>", "").replace("cute::value()", "1")
    assert built(server, plain, folder).status == ""
    (checkout / "include/cute/tensor.hpp").unlink()
    assert built(server, plain, folder).build.cached


@compiles
@pytest.mark.slow  # torch's headers
def test_load_inline_finds_it(server: Any, checkout: pathlib.Path) -> None:
    found = built(server, INLINE, checkout.parent)
    assert found.status == "" and compilers.WHOLE not in found.build.log, found


@compiles
@pytest.mark.parametrize(
    "form", ["native", "launched", pytest.param("load_inline", marks=pytest.mark.slow)]
)
def test_without_it_a_sentence_says_what_to_do(
    server: Any,
    checkout: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    monkeypatch.delenv("CUTLASS_PATH")
    found = built(server, FORMS[form], checkout.parent)
    assert found.status == "build_failed", found
    for said in ("includes cute/tensor.hpp", "CUTLASS_PATH is not set", "set it to a checkout"):
        assert said in found.reason
    assert compilers.WHOLE not in found.build.log  # which would take a minute for nothing
    assert built(server, FORMS[form], checkout.parent).build.cached
    monkeypatch.setenv("CUTLASS_PATH", str(checkout))
    if form != "load_inline":
        assert built(server, FORMS[form], checkout.parent).status == ""


@compiles
def test_the_compiler_sees_the_headers_alone(server: Any, checkout: pathlib.Path) -> None:
    with server.spawn(BuilderConfig(sandbox="weak")) as worker:
        if "mount namespace" in worker.missing:
            pytest.skip("this machine gives a builder no file system of its own")
    for path in ("cute/../../beside.hpp", f"cute/../..{checkout}/beside.hpp"):
        text = CANDIDATE.replace("#include <cute/", f"#include <{path}>\n#include <cute/")
        found = built(server, text, checkout.parent)
        assert found.status == "build_failed" and "No such file" in found.reason, found
    inside = CANDIDATE.replace(
        "#include <cute/", "#include <cute/../cutlass/version.h>\n#include <cute/"
    )
    assert built(server, inside, checkout.parent).status == ""


def _import(text: str, folder: pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Imports an exported file, as if there were a GPU."""
    path = folder / "best.py"
    path.write_text(f"import torch\ntorch.cuda.get_device_capability = lambda *_: (9, 0)\n{text}")
    nvcc = os.path.dirname(toolchain.nvcc())
    env = {"PATH": f"{nvcc}:{os.environ['PATH']}", "HOME": str(folder), **more}
    env["TORCH_EXTENSIONS_DIR"] = str(folder / "built")
    return subprocess.run(
        [sys.executable, "-I", "-B", str(path)], env=env, capture_output=True, text=True
    )


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("form", ["native", "launched"])
def test_an_exported_file_builds_where_cutlass_path_is_set(
    checkout: pathlib.Path, form: str
) -> None:
    # Not linked: pip's toolkit lacks what nvcc would link by itself.
    linked = FORMS[form].replace(
        '"cuda", source', '"cuda", flags=("-cudart=none", "-cudadevrt=none"), source'
    )
    text, folder = inline_loader.standalone(linked), checkout.parent
    assert inline_loader.standalone(text) == text
    done = _import(text, folder)
    assert done.returncode == 1
    assert "includes cute/tensor.hpp of CUTLASS, and CUTLASS_PATH is not set" in done.stderr
    done = _import(text, folder, CUTLASS_PATH=str(checkout))
    assert len(list(folder.glob("built/kernelwright/native-*"))) == 1, done.stderr
    version = checkout / "include/cutlass/version.h"
    version.write_text(version.read_text().replace("PATCH 1", "PATCH 2"))
    done = _import(text, folder, CUTLASS_PATH=str(checkout))
    assert len(list(folder.glob("built/kernelwright/native-*"))) == 2, done.stderr


@pytest.mark.parametrize("form", ["native", "load_inline"])
def test_the_new_interpreter_of_a_certificate_is_told_of_it(
    checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    seen: dict[str, str] = {}

    class Interpreter:
        def __init__(self, *_: Any, **__: Any) -> None:
            seen.update(os.environ)

        def end(self, _: float) -> int:
            return 1

    monkeypatch.setattr(looks, "Interpreter", Interpreter)
    for name in ("CUTLASS_PATH", "CPATH"):
        monkeypatch.setenv(name, "")
    folders = [str(checkout / "include"), str(checkout / "tools/util/include")]
    asked = {"threads": 1, "device": "cpu", "profiled": False, "shared": "", "wanted": []}
    text = inline_loader.standalone(FORMS[form])
    looks.Server().run(Run(text, [asked], 1.0, cutlass=folders), [0, 1])
    assert seen["CUTLASS_PATH"] == str(checkout)
    # By the loader's own way where there is one: that is what is certified.
    assert seen["CPATH"] == (":".join(folders) if form == "load_inline" else "")


def _example(server: Any, folder: pathlib.Path, arch: str) -> None:
    found = built(server, EXAMPLE, folder, arch)
    assert found.status == "", found
    four, one = sorted(found.build.kernels, key=lambda k: k.name, reverse=True)
    assert re.search(r"rows<4>", four.name) and "rows<1>" in one.name
    for kernel in (four, one):
        assert kernel.arch == arch and kernel.registers <= 64, kernel
        assert kernel.spill_store_bytes == kernel.stack_bytes == 0, kernel
    if not toolchain.cuobjdump():
        return
    told = builder_client.facts(server, found.artifacts, str(folder / "cache"), "weak")
    widths = {k.name: (k.load_bytes, k.store_bytes) for k in told}
    assert widths[one.name] == (4, 4)
    loads, stores = widths[four.name]
    assert loads == 16 and stores > 12  # ptxas splits one


def test_an_exported_file_gets_what_was_built(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a candidate runs there are neither a compiler nor the headers."""
    monkeypatch.delenv("CUTLASS_PATH", raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(kernelwright, "_nvcc", lambda: "/no/nvcc")
    monkeypatch.setattr(kernelwright, "_arch", lambda: "sm_90a")
    monkeypatch.setattr(subprocess, "run", subprocess.run)
    made = tmp_path / "object"
    made.write_text("of the builder")
    fd = os.open(made, os.O_RDONLY)
    key = form_native.key_of(SOURCE, ["-DX"], "cuda")
    given = artifacts.Objects([{"request": key}], [fd])
    stand_in_compiler.stand_in_for_the_compiler(given)
    path = kernelwright._build(SOURCE, ("-DX",), "native", "cuda")
    assert pathlib.Path(path).read_text() == "of the builder"
    os.close(fd)


@compiles
@whole
@pytest.mark.slow  # half a minute each; how candidates get the headers is seen on the small ones
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_example_in_cute(server: Any, tmp_path: pathlib.Path, arch: str) -> None:
    _example(server, tmp_path, arch)


@whole
@pytest.mark.slow
def test_nvrtc_compiles_cute(server: Any, tmp_path: pathlib.Path) -> None:
    device, host = EXAMPLE.split('extern "C" void softmax')
    text = device.replace(
        "template <int Vector>\n__global__", 'constexpr int Vector = 4;\nextern "C" __global__'
    )
    text += '"""' + host.split('"""', 1)[1]
    text = text.replace("lib.softmax(x", "lib.rows[x.shape[0] // 4, 128](x")
    found = built(server, text, tmp_path)
    assert found.status == "", found
    (kernel,) = found.build.kernels
    assert kernel.name == "rows" and kernel.registers <= 64
