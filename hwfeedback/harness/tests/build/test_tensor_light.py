"""tensor_light.h: what stands in for torch's headers where load_inline compiles CUDA.

The sources here launch nothing, so that they run where there is no GPU; nvcc must be there.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from evaluating import of_work_folder

from kwharness.base.requests import Candidate
from kwharness.build import (
    build_process,
    builder_client,
    compilers,
    diagnostics,
    object_cache,
    torch_headers,
)
from kwharness.machine import toolchain
from kwharness.process.fork_client import ForkServer

pytestmark = pytest.mark.skipif(not toolchain.nvcc(), reason=toolchain.NO_NVCC)
ARCH = "sm_90a"

CANDIDATE = '''import torch
from torch.utils.cpp_extension import load_inline

cuda = r"""
SOURCE
"""
lib = load_inline("probe", [r"""DECLARATIONS"""], [cuda], functions=FUNCTIONS)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return lib.FIRST(x)
'''


def candidate(source: str, declarations: str, *functions: str) -> str:
    text = CANDIDATE.replace("SOURCE", source).replace("DECLARATIONS", declarations)
    return text.replace("FUNCTIONS", repr(list(functions))).replace("FIRST", functions[0])


@pytest.fixture(scope="module")
def build(
    server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    cache = str(tmp_path_factory.mktemp("cache"))

    def built(text: str) -> dict[str, Any]:
        return builder_client.build(server, Candidate(text), cache, "cuda", "weak", arch=ARCH)

    return built


def loaded(built: dict[str, Any]) -> Any:
    """Returns the extension, in this process."""
    assert built.status == "", built
    (fd,) = object_cache.open_all(built.artifacts)  # stays open: a path is loaded once in a process
    name = built.artifacts[0].name
    loader = importlib.machinery.ExtensionFileLoader(name, f"/proc/self/fd/{fd}")
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# Each function of the header, on tensors of the CPU. In order, so that Python can say the same.
PROBE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#define CHECK_FLOAT(x) \
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, #x " is no float: ", x.scalar_type())

template <typename T>
__global__ void twice_kernel(const T* __restrict__ x, T* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}

torch::Tensor twice(torch::Tensor x) {
  CHECK_FLOAT(x);
  TORCH_CHECK(x.is_contiguous());
  if (x.is_cuda()) {
    const c10::cuda::CUDAGuard guard(x.device());
    auto y = torch::empty_like(x);
    const int64_t n = x.numel();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "twice", ([&] {
      twice_kernel<scalar_t><<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
          x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
    }));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
  }
  auto y = torch::empty(x.sizes(), x.options());
  for (int64_t i = 0; i < x.numel(); i++) y.data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  return y;
}

std::vector<torch::Tensor> shapes(torch::Tensor x) {
  return {
      x.t().contiguous(), x.view({-1}), x.reshape({3, 2}), x.permute({1, 0}), x.transpose(0, 1),
      x.unsqueeze(0).expand({4, 2, 3}), x.unsqueeze(1).squeeze(1), x.unsqueeze(0).squeeze(),
      x.flatten(), x.select(0, 1), x.narrow(1, 1, 2), x.clone(), x.detach(), x.sum(), x.mean(),
  };
}

std::vector<torch::Tensor> made(torch::Tensor x) {
  auto integers = torch::TensorOptions().dtype(torch::kInt32).device(x.device());
  auto copied = torch::zeros_like(x);
  copied.copy_(x);
  auto filled = torch::empty({2}, torch::kFloat64);
  filled.fill_(2.5);
  auto zeroed = torch::ones({2, 2}, integers);
  zeroed.zero_();
  return {
      torch::zeros({x.size(0), 4}, x.options().dtype(torch::kInt64)), torch::ones({3}, integers),
      torch::full({2}, 3, torch::TensorOptions()), torch::full({2}, 1.5), torch::ones_like(x),
      copied, filled, zeroed, x.to(torch::kFloat64), x.to(torch::kCPU), x + x, x - x, x * x, x / x,
      torch::mm(x, x.t()), at::matmul(x, x.t()), torch::bmm(x.unsqueeze(0), x.t().unsqueeze(0)),
      torch::addmm(x, torch::ones({2, 2}), x), torch::empty({0}, torch::dtype(torch::kBool)),
  };
}

using Numbers = std::vector<int64_t>;
std::tuple<Numbers, Numbers, Numbers> numbers(torch::Tensor x) {
  return {x.sizes().vec(), x.strides().vec(),
          {x.dim(), x.numel(), x.size(-1), x.stride(0), x.element_size(), int64_t(x.nbytes()),
           x.is_contiguous(), x.is_cuda(), x.defined(), torch::Tensor().defined(),
           x.requires_grad(), x.sizes() == x.t().sizes(), x.dtype() == torch::kFloat,
           x.type().is_cuda(), x.device() == torch::Device(torch::kCPU), x.is_floating_point(),
           x.sum().item<int64_t>()}};
}

double item(torch::Tensor x) { return x.sum().item<double>() + x.sum().item<float>(); }
torch::Tensor maybe(std::optional<torch::Tensor> x, torch::Tensor y) { return x ? *x : y; }
float* wrong_type(torch::Tensor x) { return x.data_ptr<float>(); }
int64_t checks(torch::Tensor x) {
  wrong_type(x);
  return 0;
}
int64_t no_words(torch::Tensor x) {
  TORCH_CHECK(x.dim() > 7);
  return 0;
}
int64_t with_words(torch::Tensor x) {
  TORCH_CHECK(x.dim() > 7, "has ", x.dim(), " of ", x.sizes(), " on ", x.device(), " in ", 1u, ' ',
              true);
  return 0;
}
int64_t dispatched(torch::Tensor x) {
  int64_t size = 0;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "dispatched", [&] { size = sizeof(scalar_t); });
  return size;
}
"""
HEADS = """
torch::Tensor twice(torch::Tensor x);
std::vector<torch::Tensor> shapes(torch::Tensor x);
std::vector<torch::Tensor> made(torch::Tensor x);
using Numbers = std::vector<int64_t>;
std::tuple<Numbers, Numbers, Numbers> numbers(torch::Tensor x);
double item(torch::Tensor x);
torch::Tensor maybe(std::optional<torch::Tensor> x, torch::Tensor y);
int64_t checks(torch::Tensor x);
int64_t no_words(torch::Tensor x);
int64_t with_words(torch::Tensor x);
int64_t dispatched(torch::Tensor x);
"""
NAMES = (
    "twice", "shapes", "made", "numbers", "item", "maybe", "checks", "no_words", "with_words",
    "dispatched",
)  # fmt: skip
PROBE_CANDIDATE = candidate(PROBE, HEADS, *NAMES)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype and found.stride() == wanted.stride()
    assert torch.equal(found, wanted)


def as_python_says(lib: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3) + 1
    same(lib.twice(x), 2 * x)
    wanted = [
        x.t().contiguous(), x.view(-1), x.reshape(3, 2), x.permute(1, 0), x.transpose(0, 1),
        x.unsqueeze(0).expand(4, 2, 3), x, x, x.flatten(), x[1], x.narrow(1, 1, 2), x, x, x.sum(),
        x.mean(),
    ]  # fmt: skip
    for found, w in zip(lib.shapes(x), wanted, strict=True):
        same(found, w)
    wanted = [
        torch.zeros(2, 4, dtype=torch.int64), torch.ones(3, dtype=torch.int32),
        torch.full((2,), 3), torch.full((2,), 1.5), torch.ones_like(x), x,
        torch.full((2,), 2.5, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.int32),
        x.double(), x, x + x, x - x, x * x, x / x, x @ x.t(), x @ x.t(), (x @ x.t()).unsqueeze(0),
        torch.addmm(x, torch.ones(2, 2), x), torch.empty(0, dtype=torch.bool),
    ]  # fmt: skip
    for found, w in zip(lib.made(x), wanted, strict=True):
        same(found, w)
    truths = [True, False, True, False, False, False, True, False, True, True]
    assert lib.numbers(x) == ([2, 3], [3, 1], [2, 6, 3, 3, 4, 24, *truths, 21])
    assert lib.item(x) == 42
    assert lib.maybe(None, x) is not None and torch.equal(lib.maybe(x, 2 * x), x)
    assert lib.dispatched(x) == 4 and lib.dispatched(x.double()) == 8
    for function, given, says in (
        (lib.twice, x.double(), "x is no float: Double"),
        (lib.twice, x.t(), "to be true, but got false"),
        (lib.checks, x.double(), "expected scalar type Float but found Double"),
        (lib.no_words, x, "Expected x.dim() > 7 to be true, but got false"),
        (lib.with_words, x, "has 2 of [2, 3] on cpu in 1 1"),
        (lib.dispatched, x.long(), "not implemented for 'Long'"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(says)):
            function(given)
    with pytest.raises(TypeError):
        lib.twice(3)
    # Nothing is freed too early, nor kept.
    alive = torch.ones(4)
    for _ in range(3):
        assert lib.maybe(alive, x)._use_count() == alive._use_count() == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_native_kernel_is_compiled_for_any_gpu(tmp_path: pathlib.Path, arch: str) -> None:
    source = """
#include <cuda_runtime.h>
__global__ void sums(const float* x, float* y) {
  __shared__ float part[64];
  part[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; i++) sum += part[(threadIdx.x + i) % 64];
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" void run(const float* x, float* y, int n, cudaStream_t s) {
  sums<<<n, 64, 0, s>>>(x, y);
}
"""
    request = {"kind": "native", "source": source, "flags": [], "arch": arch}
    done = compilers.compile_cuda(request, str(tmp_path))
    assert done.object, done.log
    assert ctypes.CDLL(done.object).run  # with the runtime that torch has loaded
    (kernel,) = done.kernels
    assert kernel.arch == arch and kernel.shared_bytes == 256 and kernel.registers > 4


@pytest.mark.slow  # it calls all that the header has; what is built with it every day is below
def test_it_does_what_torch_does(build: Callable[[str], dict[str, Any]]) -> None:
    built = build(PROBE_CANDIDATE)
    assert compilers.WHOLE not in built.build.log, built.build.log
    as_python_says(loaded(built))
    assert built.build.kernels, "nothing of ptxas"


@pytest.mark.slow
def test_torch_does_what_it_does(
    build: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sources with torch's own headers: a minute or more."""
    monkeypatch.setattr(build_process, "_light", lambda *_: "")
    text = PROBE_CANDIDATE.replace('"probe"', '"probe_with_all"')
    as_python_says(loaded(build(text)))


@pytest.mark.slow
def test_what_it_lacks_is_compiled_with_torchs_headers(
    build: Callable[[str], dict[str, Any]],
) -> None:
    source = "torch::Tensor soft(torch::Tensor x) { return torch::softmax(x, -1); }\n"
    text = candidate(source, "torch::Tensor soft(torch::Tensor x);", "soft")
    x = torch.randn(3, 5)
    built = build(text)
    assert torch.equal(loaded(built).soft(x), torch.softmax(x, -1))
    assert compilers.WHOLE in built.build.log


@pytest.fixture
def attempt(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, Any], int]]:
    """Compiles with the lighter headers in earnest. Torch's own say what is given. Returns the
    report and how often they were asked.
    """
    light = object_cache.light_tensor(str(tmp_path))
    run = compilers.run

    def compiled(cuda: str, cpp: str = "", says: str = "") -> tuple[dict[str, Any], int]:
        with_all = 0

        def counted(command: list[str], folder: str, **_: Any) -> tuple[int, str]:
            nonlocal with_all
            if light in command:
                return run(command, folder)
            with_all += command[0] == toolchain.nvcc()
            return 1, says

        monkeypatch.setattr(compilers, "run", counted)
        request = {"name": "x", "sources": [cpp], "cuda_sources": [cuda], "functions": None}
        request |= {"kind": "load_inline"}
        request |= {"flags": [], "ldflags": [], "cuda_flags": []}
        request |= dict.fromkeys(("headers", "handling"), False) | {"arch": ARCH}
        return compilers.compile_inline_cuda(request, str(tmp_path), light), with_all

    return compiled


HEAD = "#include <torch/extension.h>\n"


def test_a_mistake_is_not_compiled_again(attempt: Callable[..., Any]) -> None:
    done, with_all = attempt(HEAD + "__global__ void k(float* y) {\n  y[0] = q;\n}\n")
    assert (done.errors, with_all) == ([(1, 3, 'identifier "q" is undefined')], 0)
    assert compilers.WHOLE not in done.log
    # Nor is a tensor in a pointer's place, which is told in torch's words.
    done, with_all = attempt(HEAD + "void f(torch::Tensor x) { float* p = x; }\n")
    assert with_all == 0
    assert 'from "at::Tensor" to "float *"' in done.errors[0][2]


MORE = "torch::Tensor f(torch::Tensor x) {{ return {}; }}\n"


@pytest.mark.parametrize(
    "cuda",
    [
        MORE.format("torch::softmax(x, -1)"),
        MORE.format("x.softmax(-1)"),
        MORE.format("x.sum(1)"),
        MORE.format("2 * x"),
        "__global__ void C10_LAUNCH_BOUNDS_1(256) k(float* y) { y[0] = 1; }\n",
        "__global__ void k(float* y) { y[0] = __half2float(__float2half(y[1])); }\n",
        "__global__ void k(float* y) { y[0] = FLT_MAX; }\n",
    ],
)
def test_what_it_lacks_is_tried_with_torchs_headers(attempt: Callable[..., Any], cuda: str) -> None:
    of_the_toolkit = "x.h:10:10: fatal error: cusparse.h: No such file or directory\n"
    done, with_all = attempt(HEAD + cuda, says=of_the_toolkit)
    assert with_all == 1
    assert done.errors and not any("cusparse.h" in e[2] for e in done.errors)
    assert done.errors[0][:2] == (1, 2)
    assert done.log.startswith(f"{compilers.AGAIN}: cusparse.h")


def test_what_torchs_headers_say_is_reported(attempt: Callable[..., Any]) -> None:
    said = 'source1.cu(2): error: class "at::Tensor" has no member "foo"\n'
    done, with_all = attempt(HEAD + MORE.format("x.foo()"), says=said)
    assert (done.errors, with_all) == ([(1, 2, 'class "at::Tensor" has no member "foo"')], 1)
    assert compilers.WHOLE in done.log


@pytest.mark.parametrize(
    "message,cuda,again",
    [
        ('identifier "q" is undefined', "using namespace torch;", False),
        ('identifier "softmax" is undefined', "", False),
        ('identifier "softmax" is undefined', "using namespace torch;", True),
        ('identifier "CUDA_KERNEL_LOOP" is undefined', "", True),
        ('identifier "BLOCK_SIZE" is undefined', "", False),
        ('namespace "std" has no member "unordered_map"', "", True),
        ('namespace "std" has no member "maxx"', "", False),
        ("‘q’ was not declared in this scope", "", False),
        ("‘softmax’ is not a member of ‘torch’", "", True),
        ('name followed by "::" must be a class or namespace name', "", True),
        ("too few arguments in function call", "f(x);", False),
        ("too few arguments in function call", "x.sum(1);", True),
        ('expected a ";"', "", False),
        ('expected a ";"', "#include <ATen/native/cuda/Loops.cuh>", True),
        ('expected a ";"', "TORCH_CHECK_EQ(1, 1);", True),
        ("undefined reference to `f(at::Tensor)'", "", False),
        ("undefined reference to `at::native::f()'", "", True),
        ("Entry function 'k' uses too much shared data (0x64000 bytes, 0x38c00 max)", "", False),
        ("cute/tensor.hpp: No such file or directory", "#include <torch/nn.h>", False),
    ],
)
def test_what_torchs_headers_may_mend(message: str, cuda: str, again: bool) -> None:
    request = {"sources": [""], "cuda_sources": [cuda]}
    found = torch_headers.lacking(request, [(1, 1, message)], "")
    assert found == (message if again else "")


def test_what_is_wrong_is_found_in_its_line() -> None:
    request = {"name": "x", "sources": [""], "headers": True}
    request |= {"cuda_sources": ["__global__ void k() { q; }\n"]}
    assert '#line 1 "source1.cu"\n__global__' in compilers.inline_cuda_source(request)
    assert diagnostics.errors('source1.cu(1): error: identifier "q" is undefined\n') == [
        (1, 1, 'identifier "q" is undefined')
    ]


def test_what_binds_in_cuda_has_torchs_headers_at_once(attempt: Callable[..., Any]) -> None:
    done, with_all = attempt(HEAD + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n", says="no")
    assert with_all == 1 and done.log.startswith(compilers.BINDS)


@pytest.mark.slow  # a minute and more: torch's own headers
def test_functions_may_be_bound_in_cuda(build: Callable[[str], dict[str, Any]]) -> None:
    source = HEAD + "torch::Tensor soft(torch::Tensor x) { return torch::softmax(x, -1); }\n"
    source += 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("soft", &soft); }\n'
    text = (
        "from torch.utils.cpp_extension import load_inline\n"
        f"lib = load_inline(name='x', cpp_sources=[], cuda_sources=[{source!r}])\n"
        "class ModelNew: pass\n"
    )
    x = torch.randn(3, 5)
    assert torch.equal(loaded(build(text)).soft(x), torch.softmax(x, -1))


@pytest.mark.slow  # as the work folder below does, in the same way
def test_the_example_in_the_prompt_builds(build: Callable[[str], dict[str, Any]]) -> None:
    folder = pathlib.Path(__file__).parents[4] / "prompts" / "templates"
    built = build((folder / "example_load_inline.py").read_text())
    assert built.status == "" and len(built.build.kernels) == 1, built


def test_a_work_folder_builds_with_it(build: Callable[[str], dict[str, Any]]) -> None:
    folder = pathlib.Path(__file__).parents[4] / "examples" / "candidates"
    built = build(of_work_folder(folder / "softmax_work_folder_cuda"))
    assert built.status == "", built
    assert compilers.WHOLE not in built.build.log
    assert [k.name.partition("(")[0] for k in built.build.kernels] == ["softmax_kernel"]
