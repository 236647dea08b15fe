"""What is read of compiled kernels."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from test_builder_client import build
from test_cuda_driver import in_a_process
from test_launched import EXAMPLE

import kernelwright
from kwharness.base.verdicts import Kernel
from kwharness.build import builder_client, reports, sass
from kwharness.machine import toolchain

# As nvdisasm prints it, shortened.
SASS = """	.target	sm_90a
	.section	.text._Z4rowsPKfPfi,"ax",@progbits
_Z4rowsPKfPfi:
.text._Z4rowsPKfPfi:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*00d0*/               @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0110*/                   IADD3 R3, P0, R5, UR10, RZ ;
        /*0150*/                   LDG.E.128.CONSTANT R4, desc[UR8][R2.64] ;
        /*0160*/              @!P0 LDG.E R3, desc[UR8][R2.64] ;
        /*0170*/                   FFMA R4, R3, R4, R5 ;
        /*0180*/                   UIADD3 UR7, UR11, UR5, URZ ;
        /*0190*/                   STL.64 [R1], R4 ;
        /*01a0*/                   LDL R4, [R1] ;
        /*01b0*/                   STG.E.U8 desc[UR8][R2.64], R4 ;
        /*01c0*/                   QUITENEW.X R1 ;
        /*01d0*/                   EXIT ;
        /*01e0*/                   NOP;
	.section	.text.small,"ax",@progbits
.text.small:
        /*0000*/                   HMMA.16816.F32 R4, R8, R6, R4 ;
"""
USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z4rowsPKfPfi:
  REG:24 STACK:8 SHARED:1152 LOCAL:0 CONSTANT[0]:548 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function small:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:548 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
reads = pytest.mark.skipif(not toolchain.cuobjdump(), reason="there is no cuobjdump here")


def test_a_mix() -> None:
    found = sass.mixes(SASS)
    assert found["_Z4rowsPKfPfi"] == Kernel(
        "_Z4rowsPKfPfi",
        instructions={
            "constant": 1,
            "move": 1,
            "branch": 2,
            "integer": 2,
            "load_global": 2,
            "fp32": 1,
            "local": 2,
            "store_global": 1,
            "other": 1,
        },
        load_bytes=10.0,
        store_bytes=1.0,
        spill_store_bytes=8,
        spill_load_bytes=4,
    )
    assert found["small"] == Kernel("small", instructions={"tensor": 1})
    assert sass.mixes("no such thing") == {}


def test_classes() -> None:
    assert set(sass._CLASS.values()) == set(sass.CLASSES) - {"other"}
    assert len(sass._CLASS) == sum(len(n.split()) for n in sass._CLASSES.values()), "in two classes"
    for name, kind in (("UIMAD", "integer"), ("ULDC", "constant"), ("UTMALDG", "copy_async")):
        assert sass.instruction_class(name) == kind
    assert sass.instruction_class("ZZZ") == "other"


def test_usage() -> None:
    assert sass.usage(USAGE) == [
        Kernel("_Z4rowsPKfPfi", registers=24, shared_bytes=128, stack_bytes=8),
        Kernel("small", registers=8),
    ]
    assert sass.usage("Function f:\n REG:x") == []


def test_names() -> None:
    assert sass.demangled("_Z4rowsPKfPfi") == "rows(float const*, float*, int)"
    assert sass.demangled("softmax") == "softmax"
    assert sass.demangled("_Znonsense") == "_Znonsense"


@reads
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_cubin(arch: str) -> None:
    def work() -> str:
        text = """
        extern "C" __global__ void four(const float4* x, float4* y) {
          float4 v = x[threadIdx.x]; v.x = expf(v.x); y[threadIdx.x] = v;
        }
        extern "C" __global__ void spills(float* x, int n) {
          float all[64];
          for (int i = 0; i < 64; i++) all[i] = 0;
          for (int i = 0; i < n; i++) all[i * n % 64] += x[i];
          x[n] = all[n % 64];
        }"""
        facts = sass.facts(kernelwright.nvrtc(text, arch)[0])
        return json.dumps([k.to_json() for k in facts])

    found = {k["name"]: k for k in json.loads(in_a_process(work))}
    assert set(found) == {"four", "spills"}
    four = found["four"]
    assert (four["load_bytes"], four["store_bytes"], four["stack_bytes"]) == (16, 16, 0)
    assert four["instructions"]["special"] == 1 and four["instructions"]["load_global"] == 1
    assert 0 < four["registers"] < 64 and four["arch"] == arch.removesuffix("a")
    assert found["spills"]["stack_bytes"] == 256
    assert found["spills"]["instructions"]["local"] > 1


@reads
def test_what_triton_compiled() -> None:
    def work() -> str:
        image = kernelwright.nvrtc('extern "C" __global__ void k(int* x) { *x = 1; }', "sm_90")[0]
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("triton/HASH/k.cubin", image)
            archive.writestr("triton/HASH/k.json", json.dumps({"num_warps": 8, "shared": 4096}))
            archive.writestr("OTHER/launcher.so", b"no object")
        return json.dumps([k.to_json() for k in sass.facts(out.getvalue())])

    (kernel,) = json.loads(in_a_process(work))
    assert (kernel["name"], kernel["warps"], kernel["shared_bytes"]) == ("k", 8, 4096)


def test_what_is_no_object_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sass.facts(b"") == [] and sass.facts(b"\x7fELF" + bytes(100)) == []
    monkeypatch.setattr(toolchain, "cuobjdump", lambda: "")
    assert sass.facts(b"\x7fELF") == []


@reads
def test_a_build_has_them(server: Any, tmp_path: Any) -> None:
    built = build(server, EXAMPLE, tmp_path, device="cuda", arch="sm_90a")
    known = builder_client.facts(server, built.artifacts, str(tmp_path), "weak")
    (kernel,) = builder_client.with_facts(built.build.kernels, known)
    assert (kernel.name, kernel.arch, kernel.shared_bytes) == ("softmax", "sm_90a", 128)
    assert kernel.instructions["load_global"] == 3 and kernel.load_bytes == 4.0
    # From then on a file says so.
    assert builder_client.facts(None, built.artifacts, str(tmp_path)) == known  # type: ignore[arg-type]
    assert (
        reports.resources([3, {}, {"name": "k", "registers": -1}, {"name": "k", "warps": "8"}])
        == []
    )
    strange = [
        {
            "name": "",
            "instructions": {"x": 1, "fp32": -1, "fp64": 2},
            "load_bytes": 1e9,
            "warps": 65,
        }
    ]
    (said,) = reports.resources(strange)
    assert said.instructions == {"fp64": 2} and said.load_bytes is said.warps is None
