from __future__ import annotations

from typing import Any

import pytest
import torch
from costs import instructions

import kernelwright

SOURCE = r"""
#include <cstdint>
// extern "C" void not_this(float* x);
static const char* text = "extern \"C\" void nor_this(int a);";
#define MACRO(x) extern "C" void x(void)
extern "C" void relu(const float* __restrict__ x, float *y, long long n) {
    for (long long i = 0; i < n; i++) { y[i] = x[i] > 0 ? x[i] : 0; }
}
extern "C" {
int add(int a, int b) { if (a) { return a + b; } return b; }
double scale(const double x[], unsigned long long n, float f) { return x[n - 1] * f; }
bool flip(bool b) { return !b; }
}
extern "C" __attribute__((visibility("default")))
void nop(const float* a, const float* b, float* c, int64_t n, const std::int32_t* index,
         void* any) {}
extern "C" void none() {}
"""


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield kernelwright.native(SOURCE, flags=("-O1",), name="test")


def test_prototypes():
    found = kernelwright.prototypes(SOURCE)
    assert set(found) == {"relu", "add", "scale", "flip", "nop", "none"}
    assert found["relu"] == (
        ("void", False),
        [("x", "float", True), ("y", "float", True), ("n", "long", False)],
    )
    assert found["scale"][1] == [
        ("x", "double", True),
        ("n", "uint64_t", False),
        ("f", "float", False),
    ]
    assert found["none"][1] == []


@pytest.mark.parametrize(
    "text,kind",
    [("unsigned char* p", ("uint8_t", True)), ("char unsigned p", ("uint8_t", False)), ("long int p", ("long", False)),  # noqa: E501
     ("const unsigned p", ("uint32_t", False)), ("float const * const p", ("float", True)), ("size_t p", ("size_t", False)),  # noqa: E501
     ("std::uint16_t *p", ("uint16_t", True))],
)  # fmt: skip
def test_types(text, kind):
    (_, parameters) = kernelwright.prototypes(f'extern "C" void f({text});')["f"]
    assert parameters == [("p", *kind)]


def test_values_and_tensors(lib):
    x = torch.randn(37)
    y = torch.empty_like(x)
    assert lib.relu(x, y, x.numel()) is None
    assert torch.equal(y, x.relu())
    assert lib.add(2, 3) == 5
    assert lib.scale(torch.tensor([1.0, 2.0], dtype=torch.float64), 2, 2.5) == 5.0
    assert lib.flip(True) is False
    lib.none()
    lib.relu(torch.nn.Parameter(x), y, 1)
    lib.nop(x, x, y, 1, torch.zeros(1, dtype=torch.int32), None)


def test_wrong_arguments_are_named(lib):
    x, y = torch.randn(8), torch.empty(8)
    cases = [
        ((x.double(), y, 8), TypeError, "'x' must be torch.float32, is torch.float64"),
        ((x, y[::2], 4), ValueError, "'y' must be contiguous"),
        ((x.to("meta"), y, 8), ValueError, "'x' must be on the CPU, is on meta"),
        ((3, y, 8), TypeError, "'x' must be a tensor, got int"),
        ((x, [1.0], 8), TypeError, "'y' must be a tensor, got list"),
        ((x, y, 8.5), TypeError, "relu"),
        ((x, y), TypeError, "relu"),
        ((x, y, 1, 2), TypeError, "relu"),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            lib.relu(*arguments)
    with pytest.raises(OverflowError, match="'a' = 1099511627776"):
        lib.add(1 << 40, 0)


def test_a_call_is_little_work(lib):
    """About as long as five calls of PyTorch's: how long exactly is call_cost.py's."""
    a, b, c = torch.zeros(8), torch.zeros(8), torch.zeros(8)
    index = torch.zeros(1, dtype=torch.int32)
    assert instructions(lambda: lib.nop(a, b, c, 8, index, None)) < 200  # 107 in Python 3.11


def test_what_cannot_be_built(lib, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="does not compile"):
        kernelwright.native('extern "C" void f() { nonsense }')
    with pytest.raises(ValueError, match='extern "C"'):
        kernelwright.native("void f() {}")
    with pytest.raises(ValueError, match="language"):
        kernelwright.native("", language="fortran")
    with pytest.raises(ValueError, match="by value"):
        kernelwright.native('struct S { int a; }; extern "C" void f(S s) {}')
    with pytest.raises(ValueError, match="name"):
        kernelwright.native("", name="../x")
    lib = kernelwright.native('extern "C" int f() { return 1; }')
    assert lib.f() == 1
    assert kernelwright.native('extern "C" int f() { return 1; }').f() == 1, "from the cache"


def test_a_missing_argument_is_named(lib) -> None:
    with pytest.raises(TypeError, match=r"relu\(\) missing 1 required positional argument: 'n'"):
        lib.relu(torch.ones(4), torch.ones(4))


def test_a_parameter_may_have_any_name() -> None:
    words = ["call", "explain", "lambda", "d0", "e", "out", "a1", "_x", "None", "wrong"]
    text = 'extern "C" void f(' + ", ".join(f"int {w}" for w in words) + ");"
    _, parameters = kernelwright.prototypes(text)["f"]

    class Function:
        argtypes: Any = None
        restype: Any = None

        def __call__(self, *values: int) -> None:
            got.extend(values)

    got: list[int] = []
    kernelwright._wrap(Function(), "f", ("void", False), parameters)(*range(len(words)))
    assert got == list(range(len(words)))


def test_a_stream_is_no_argument() -> None:
    text = 'extern "C" void f(const float* x, int n, cudaStream_t stream) { }'
    result, parameters = kernelwright.prototypes(text)["f"]
    assert parameters[-1] == ("stream", "cudaStream_t", False)
    called: list[tuple[object, ...]] = []

    class Function:
        def __call__(self, *args: object) -> None:
            called.append(args)

    wrapper = kernelwright._wrap(Function(), "f", result, parameters, "cuda", lambda: None)
    with pytest.raises(ValueError, match="must be on the GPU, is on cpu"):
        wrapper(torch.zeros(2), 2)
    with pytest.raises(TypeError, match=r"2 positional arguments|takes 2"):
        wrapper(torch.zeros(2), 2, 0)
    assert not called


def test_a_launch_that_is_refused_raises() -> None:
    _, parameters = kernelwright.prototypes('extern "C" void f(int n);')["f"]

    class Function:
        def __call__(self, n: int) -> None:
            pass

    wrapper = kernelwright._wrap(
        Function(), "f", ("void", False), parameters, "cuda", lambda: b"invalid argument"
    )
    with pytest.raises(RuntimeError, match="f: invalid argument"):
        wrapper(1)
