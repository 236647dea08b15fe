"""Compiles the Triton kernels of the skills and of the example, which needs no GPU.

Usage: compile_triton.py STAGE FILE...: STAGE is "ttir" (Triton's own first form: names, shapes and
types hold) or "cubin" (all the way to machine code for sm_90). Each kernel has its types below.
"""

import importlib.util
import pathlib
import sys
from types import ModuleType

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)

# Of each kernel: the types of its arguments in order, and its constants.
SIGNATURES = {
    "attention": (["*fp32"] * 4 + ["i32", "fp32"], {"D": 64, "BR": 64, "BC": 32}),
    "bias_scale_add_gelu": (["*fp32"] * 4 + ["fp32", "i32"], {"BLOCK": 1024}),
    "layer_norm_rows": (["*fp32"] * 4 + ["i32", "fp32"], {"BLOCK": 1024}),
    "partial_sums": (["*fp32"] * 2 + ["i32", "i32"], {"BLOCK": 2048}),
    "join": (["*fp32"] * 2 + ["i32"], {"PIECES": 16}),
    "rms_norm_rows": (["*fp32"] * 3 + ["i32", "fp32"], {"BLOCK": 2048}),
    "product": (["*fp32"] * 3 + ["i32"] * 3, {"BM": 64, "BN": 64, "BK": 32, "GROUP": 8}),
}


def load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_of(name: str, kernel: JITFunction) -> ASTSource:
    types, constants = SIGNATURES[name]
    rest = [a for a in kernel.arg_names if a not in constants]
    given = dict(zip(rest, types, strict=True))
    signature = {a: given.get(a, "constexpr") for a in kernel.arg_names}
    places = {(kernel.arg_names.index(c),): v for c, v in constants.items()}
    return ASTSource(kernel, signature, places)


def to_ttir(source: ASTSource) -> None:
    backend = make_backend(TARGET)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({})
    functions = backend.get_codegen_implementation(options)
    source.make_ir(TARGET, options, functions, backend.get_module_map(), context)


def main() -> None:
    stage, *files = sys.argv[1:]
    for file in files:
        for name, value in vars(load(file)).items():
            kernel = value.fn if isinstance(value, Autotuner) else value
            if not isinstance(kernel, JITFunction):
                continue
            source = source_of(name, kernel)
            if stage == "cubin":
                triton.compile(source, target=TARGET)
            else:
                to_ttir(source)
            print(f"{pathlib.Path(file).name}: {name}")


main()
