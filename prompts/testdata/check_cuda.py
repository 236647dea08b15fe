"""Runs what the skills' CUDA fragments define against plain PyTorch, and prints what is off.

Usage: check_cuda.py LIBRARY, which holds the fragments' functions, for the GPU that is there.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = "cuda"
lib = ctypes.CDLL(sys.argv[1])
failures: list[str] = []


# What only compiles for sm_90a.
HOPPER = {"gemm_wgmma", "row_sums_bulk", "remove_means"}


class Missing(Exception):
    """The library is for an architecture that has not this function."""


def call(name: str, *args: Any) -> None:
    try:
        function = getattr(lib, name)
    except AttributeError:
        if name not in HOPPER:
            raise
        raise Missing from None
    stream = torch.cuda.current_stream().cuda_stream
    passed: list[Any] = []
    for a in args:
        if isinstance(a, Tensor):
            passed.append(ctypes.c_void_p(a.data_ptr()))
        elif isinstance(a, float):
            passed.append(ctypes.c_float(a))
        else:
            passed.append(a)  # a ctypes value says its own type
    function.restype = ctypes.c_int
    function(*passed, ctypes.c_void_p(stream))
    torch.cuda.synchronize()


def long(n: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(n)


def integer(n: int) -> ctypes.c_int:
    return ctypes.c_int(n)


def draw(*shape: int, mean: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*shape) + mean).to(dtype).to(DEVICE)


def like(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, -77, dtype=dtype, device=DEVICE)


def expect(what: str, got: Tensor, want: Tensor, relative: float = 1e-5, absolute: float = 1e-6):
    got, want = got.double().cpu(), want.double().cpu()
    try:
        torch.testing.assert_close(got, want, rtol=relative, atol=absolute, equal_nan=True)
    except AssertionError as error:
        failures.append(f"{what}: {str(error).splitlines()[2:5]}")


def planted(x: Tensor) -> Tensor:
    """Infinities in the last row, NaN in the one before."""
    flat = x.flatten(0, -2)
    flat[-1, 1], flat[-2, -1] = float("inf"), float("nan")
    return x


def axpy() -> None:
    x, y = draw(10004), draw(10004)
    out = like(10004)
    call("axpy", x, y, out, 1.5, long(10004 // 4))
    expect("axpy", out, 1.5 * x.double() + y)


def relu() -> None:
    for n, off in ((1, 0), (1003, 0), (1003, 1), (4096, 3)):
        x, y = draw(n + off)[off:], like(n + off)[off:]
        x[0] = float("nan")
        call("relu_unaligned", x, y, long(n))
        expect(f"relu of {n} from {off}", y, x.relu(), 0, 0)
    x, y = draw(1001)[1:], like(1000)
    call("relu_unaligned", x, y, long(1000))
    expect("relu, unlike", y, x.relu(), 0, 0)


def transpose() -> None:
    x, y = draw(70, 45), like(45, 70)
    call("transpose", x, y, integer(70), integer(45))
    expect("transpose", y, x.t(), 0, 0)


def total() -> None:
    x, out = draw(50000, mean=3), like(1)
    partial, done = like(64), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for _ in range(2):  # the second launch finds what the first has left
        call("total", x, long(12500), partial, done, out, 0.5, integer(7))
        expect("total", out, x.double().sum().reshape(1) / 2)


def max_over_dim() -> None:
    for outer, reduced, inner in ((2, 37, 45), (3, 1, 1), (1, 300, 33)):
        x, y = draw(outer, reduced, inner), like(outer, inner)
        x[0, 0, 0] = float("nan")
        call("max_over_dim", x, y, integer(outer), integer(reduced), integer(inner))
        expect("max over a dimension", y, x.amax(1), 0, 0)


def softmax() -> None:
    for columns in (4, 100, 2048, 2052, 5000, 16384):
        for mean in (0.0, 1000.0):
            x, y = planted(draw(5, columns, mean=mean) * 3), like(5, columns)
            x[0] = float("-inf")
            x[1, :-1] = float("-inf")
            call("softmax_rows", x, y, long(5), integer(columns))
            expect(f"softmax of {columns}", y, x.double().softmax(1), 1e-5, 1e-30)


def layer_norm() -> None:
    for columns in (4, 1000, 1028, 4000, 10000):
        x, w, b = planted(draw(5, columns, mean=30)), draw(columns), draw(columns)
        y = like(5, columns)
        call("layer_norm", x, w, b, y, long(5), integer(columns), 1e-5)
        want = F.layer_norm(x.double(), (columns,), w.double(), b.double(), 1e-5)
        expect(f"layer norm of {columns}", y, want, 1e-4, 1e-4)


def cumsum() -> None:
    for columns in (4, 1000, 1024, 5000):
        for reverse in (0, 1):
            x, y = planted(draw(4, columns)), like(4, columns)
            call("cumsum", x, y, long(4), integer(columns), integer(reverse))
            d = x.double()
            want = d.flip(1).cumsum(1).flip(1) if reverse else d.cumsum(1)
            expect(f"cumsum of {columns}, reverse {reverse}", y, want, 1e-5, 1e-4)


def products() -> None:
    for m, n, k in ((128, 128, 8), (100, 36, 20), (300, 260, 132)):
        a, b, c = draw(m, k), draw(k, n), like(m, n)
        call("sgemm", a, b, c, integer(m), integer(n), integer(k))
        expect(f"sgemm of {m}, {n}, {k}", c, a.double() @ b.double(), 1e-5, 1e-4)


def half_products(name: str) -> Callable[[], None]:
    def run() -> None:
        for m, n, k in ((128, 128, 64), (100, 36, 24), (300, 260, 520)):
            a, b = draw(m, k, dtype=torch.bfloat16), draw(n, k, dtype=torch.bfloat16)
            c = like(m, n)
            call(name, a, b, c, integer(m), integer(n), integer(k))
            expect(f"{name} of {m}, {n}, {k}", c, a.double() @ b.double().t(), 1e-4, 1e-3)

    return run


def wmma() -> None:
    a, b, c = draw(48, 64, dtype=torch.float16), draw(64, 32, dtype=torch.float16), like(48, 32)
    call("gemm_wmma", a, b, c, integer(48), integer(32), integer(64))
    expect("wmma", c, a.double() @ b.double(), 1e-4, 1e-3)


def three_tf32() -> None:
    """As near as float32: the bound is an eighth of what TF32 alone would leave."""
    for k in (8, 200, 4096):
        a, b, c = draw(16, k), draw(k, 8), like(16, 8)
        call("product_16x8", a, b, c, integer(k))
        expect(f"three TF32 products over {k}", c, a.double() @ b.double(), 0, 3e-6 * k**0.5)


def depthwise() -> None:
    for channels, h, w in ((3, 5, 7), (2, 33, 40)):
        x, k, b = draw(2, channels, h, w), draw(channels, 1, 3, 3), draw(channels)
        y = like(2, channels, h, w)
        call("depthwise", x, k, b, y, *map(integer, (2, channels, h, w)))
        want = F.conv2d(x.double(), k.double(), b.double(), padding=1, groups=channels)
        expect("depthwise", y, want, 1e-5, 1e-5)


def max_pool() -> None:
    for h, w in ((1, 1), (5, 7), (40, 70)):
        x = draw(3, h, w)
        x[0, 0, 0] = float("nan")
        want = F.max_pool2d(x, 3, 2, 1)
        y = like(*want.shape)
        call("max_pool_3x3_s2_p1", x, y, integer(3), integer(h), integer(w))
        expect("max pooling", y, want, 0, 0)


def attention() -> None:
    for n in (64, 100, 1):
        for causal in (0, 1):
            q, k, v = (draw(3, n, 64, dtype=torch.bfloat16) for _ in range(3))
            o = like(3, n, 64, dtype=torch.bfloat16)
            call("attention_bf16", q, k, v, o, integer(3), integer(n), 0.125, integer(causal))
            want = F.scaled_dot_product_attention(
                q.double(), k.double(), v.double(), is_causal=bool(causal)
            )
            expect(f"attention of {n}, causal {causal}", o, want, 2e-2, 2e-2)


def fused() -> None:
    for rows, columns in ((5, 64), (9, 1100)):
        x, bias, residual = draw(rows, columns), draw(columns), draw(rows, columns)
        y = like(rows, columns)
        call("fused", x, bias, residual, y, 0.7, long(rows), integer(columns))
        want = F.gelu((x.double() + bias) * 0.7 + residual)
        expect("fused", y, want, 1e-5, 1e-6)


def l1_rows() -> None:
    x, y = draw(9, 1001), like(9, 1001)
    call("l1_rows", x, y, integer(9), integer(1001))
    expect("l1 rows", y, F.normalize(x.double(), p=1, dim=1), 1e-5, 1e-9)


def norms() -> None:
    x, y = draw(3, 10007), like(3)
    partial, done = like(3, 6), torch.zeros(3, dtype=torch.int32, device=DEVICE)
    for _ in range(2):
        call("norms", x, partial, done, y, integer(3), long(10007), integer(6))
        expect("norms", y, x.double().norm(dim=1))


def gauss() -> None:
    x, y = draw(11 * 1024), like(11 * 1024)
    call("gauss", x, y, long(11), integer(2))
    expect("gauss", y, (-(x.double() ** 2)).exp())


def bulk() -> None:
    x, y = draw(50, 6000), like(50)
    call("row_sums_bulk", x, y, integer(50), integer(6000), integer(4))
    expect("row sums by bulk copies", y, x.double().sum(1), 1e-5, 1e-3)


def remove_means() -> None:
    x, sums, y = draw(40, 300, mean=2), like(300), like(40, 300)
    call("remove_means", x, sums, y, integer(40), integer(300))
    expect("means removed", y, x.double() - x.double().mean(0), 1e-5, 1e-5)


def exact_sums() -> None:
    x, y = draw(4, 3000), like(4)
    x[1, 5], x[2, 5] = float("inf"), float("nan")
    want = x.double().sum(1)
    x[0], want[0] = 0, 1
    x[0, 0], x[0, 256], x[0, 512] = 1e30, 1, -1e30
    call("exact_sums", x, y, integer(4), integer(3000))
    expect("exact sums", y, want, 1e-7, 1e-7)


def nhwc_to_nchw() -> None:
    for n, c, hw in ((2, 3, 7), (1, 1, 5), (3, 64, 49)):
        x, y = draw(n, hw, c), like(n, c, hw)
        call("nhwc_to_nchw", x, y, *map(integer, (n, c, hw)))
        expect("nhwc to nchw", y, x.transpose(1, 2), 0, 0)


def doubled() -> None:
    x, y = draw(1001), like(1001)
    call("doubled", x, y, long(1001))
    expect("doubled", y, 2 * x, 0, 0)


CHECKS = [
    axpy, relu, transpose, total, max_over_dim, softmax, layer_norm, cumsum, products,
    half_products("gemm_bf16"), half_products("gemm_wgmma"), wmma, three_tf32, depthwise, max_pool,
    attention, fused, l1_rows, norms, gauss, bulk, remove_means, exact_sums, nhwc_to_nchw, doubled,
]  # fmt: skip

torch.manual_seed(7)
missing = 0
for check in CHECKS:
    try:
        check()
    except Missing:
        missing += 1
print("\n".join(failures))
print(f"{len(CHECKS) - missing} checks, {len(failures)} results are off")
sys.exit(bool(failures))
