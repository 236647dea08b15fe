"""Turns a candidate in CUDA into one in C++ that does the same on a CPU, see cuda_on_cpu.h."""

from __future__ import annotations

import pathlib
import re

HEADER = pathlib.Path(__file__).with_name("cuda_on_cpu.h")
# kernel<4><<<blocks, threads, shared, stream>>>(arguments);
LAUNCH = re.compile(r"(kernel\w+(?:<\d+>)?)<<<(.+?), (\d+), 0, stream>>>\((.*?)\);")


def on_cpu(source: str) -> str:
    source = LAUNCH.sub(r"emulated::launch(\2, \3, [&] { \1(\4); });", source)
    source = source.replace(", cudaStream_t stream) {", ") {")
    return source.replace(
        'native(language="cuda", flags=("-fmad=false",), source=r"""\n',
        'native(language="cpp", flags=("-O1", "-ffp-contract=off", "-w"), source=r"""\n'
        f"{HEADER.read_text()}\n",
    )
