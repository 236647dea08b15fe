"""What a candidate asks to have built, and its C++ as far as it is read: a request, or an error
that says what is wrong.
"""

from __future__ import annotations

import json
import pathlib

import hostile

import kernelwright
from kwharness.build import form_extension, form_native

_CANDIDATES = pathlib.Path(__file__).parents[3] / "examples" / "candidates"


def seeds() -> list[bytes]:
    arguments = {
        "name": "x",
        "cpp_sources": ["int f();"],
        "functions": ["f"],
        "extra_cflags": ["-O3"],
        "with_pytorch_error_handling": False,
    }
    return [
        json.dumps(arguments).encode(),
        json.dumps({**arguments, "functions": {"f": "doc"}, "cuda_sources": ""}).encode(),
        json.dumps({**arguments, "cuda_sources": "x", "extra_cuda_cflags": ["-O3"]}).encode(),
        b'extern "C" void f(const float* x, int64_t n, float* __restrict__ y);\n',
        b'extern "C" {\nint g(void);\nvoid h(double a[3], bool b) {}\n}\n',
        b'extern "C" __global__ void __launch_bounds__(256, 2) k(float* x, size_t n) {}\n',
        b'// extern "C" void no();\n/* */ extern "C"   float   k ( ) {',
        *(p.read_bytes() for p in sorted(_CANDIDATES.glob("*native.py"))),
        *(p.read_bytes() for p in sorted(_CANDIDATES.glob("*kernel.py"))),
    ]


def one(data: bytes) -> None:
    # Reading declarations takes a time that grows with the square of what lies open.
    text = data[:4096].decode("utf-8", "replace")
    try:
        found, launched = kernelwright.prototypes(text), kernelwright.kernels(text)
    except (ValueError, TypeError) as e:
        assert str(e)
    else:
        assert len(found) <= len(text) and not (found and launched)
    assert form_native.key_of(text, ["-O3"]) != form_native.key_of(text, ["-O2"])
    script = hostile.parse(data)
    if script is None:
        return
    try:
        request = form_extension.inline_request(script)
    except (ValueError, TypeError, OSError):
        return
    hostile.sendable({k: v for k, v in request.items() if k != "functions"})
    assert request["name"].isidentifier()
    cuda = (*request.get("cuda_sources", ()), *request.get("cuda_flags", ()))
    assert all(isinstance(s, str) for s in (*request["sources"], *request["flags"], *cuda))
    assert form_extension.key_of(request) == form_extension.key_of(json.loads(json.dumps(request)))
