"""Turns a candidate in CUDA into one in C++ that does the same on a CPU, see cuda_on_cpu.h."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import kernelwright

HEADER = pathlib.Path(__file__).with_name("cuda_on_cpu.h")
# kernel<4><<<blocks, threads, shared, stream>>>(arguments);
LAUNCH = re.compile(r"(kernel\w+(?:<\d+>)?)<<<(.+?), (\d+), (\d+), stream>>>\((.*?)\);")
SHARED = re.compile(r"extern __shared__ __align__\(16\) unsigned char (\w+)\[\];")

NATIVE = re.compile(r'native\(language="cuda", flags=\(.*?\),')

# What -prec-div=false and -prec-sqrt=false make less exact.
DIVISION = re.compile(r"(const float \w+ = )([\w.\[\]]+) / ([\w.\[\]]+);")
ROOT = re.compile(r"\bsqrtf\(")

FLAGS = ("-O1", "-fno-tree-sra", "-ffp-contract=off", "-w")


@functools.cache
def header() -> pathlib.Path:
    """Precompiles the header, which takes a compiler as long as a candidate does. Its folder is
    named by what it says, as is what includes it.
    """
    compiler, machine = kernelwright._compiler("cpp", False)
    said = hashlib.sha256(repr((HEADER.read_text(), compiler, FLAGS, machine)).encode())
    place = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], f"emulated-{said.hexdigest()[:16]}")
    copy = place / HEADER.name
    if place.exists():
        return copy
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = pathlib.Path(folder, "made", HEADER.name)
        made.parent.mkdir()
        shutil.copy(HEADER, made)
        whole = [*compiler, *FLAGS, "-x", "c++-header", made, "-o", f"{made}.gch"]
        subprocess.run(whole, check=True)
        with contextlib.suppress(OSError):  # another process was quicker
            made.parent.rename(place)
    return copy


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
    if '"-prec-div=false"' in source:
        source = DIVISION.sub(r"\1emulated::quotient(\2, \3);", source)
        source = ROOT.sub("emulated::root(", source)
    flags = (*FLAGS, "-include", str(header()))
    return NATIVE.sub(f'native(language="cpp", flags={flags},', source)
