"""Turns a candidate in CUDA into one in C++ that does the same on a CPU, see cuda_on_cpu.h."""

from __future__ import annotations

import pathlib
import re

HEADER = pathlib.Path(__file__).with_name("cuda_on_cpu.h")
# kernel<4><<<blocks, threads, shared, stream>>>(arguments);
LAUNCH = re.compile(r"(kernel\w+(?:<\d+>)?)<<<(.+?), (\d+), (\d+), stream>>>\((.*?)\);")
SHARED = re.compile(r"extern __shared__ __align__\(16\) unsigned char (\w+)\[\];")


def on_cpu(source: str) -> str:
    source = LAUNCH.sub(r"emulated::launch(\2, \3, \4, [&] { \1(\5); });", source)
    source = source.replace("#include <cuda_pipeline.h>\n", "")
    source = SHARED.sub(r"unsigned char* const \1 = emulated::dynamic;", source)
    # Stream 0 stands for the one that Python does not hand over.
    source = re.sub(
        r"(extern \"C\" void .*), cudaStream_t stream\) \{",
        r"\1) {\n  const cudaStream_t stream = nullptr;",
        source,
    )
    return source.replace(
        'native(language="cuda", flags=("-fmad=false",), source=r"""\n',
        'native(language="cpp", flags=("-O1", "-fno-tree-sra", "-ffp-contract=off", "-w"), '
        'source=r"""\n'
        f"{HEADER.read_text()}\n",
    )
