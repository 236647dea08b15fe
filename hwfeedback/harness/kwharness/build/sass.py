"""What compiled kernels of a GPU are made of, read from their objects: registers, shared memory,
and the instruction mix of their SASS. It needs no GPU. For the builder's sandbox: objects and what
the toolkit's readers say of them are foreign.

By NVIDIA's cuobjdump and nvdisasm, which Triton brings along with torch. The classes follow the
instruction set reference of the CUDA Binary Utilities.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
import zipfile

from kwharness.base.verdicts import Kernel
from kwharness.machine import toolchain
from kwharness.torch_compile import called_cache, called_languages

MAX_OBJECT = 8 << 20  # bytes: what is larger has a library in it, and takes minutes to read
MAX_CUBINS = 40
MAX_TEXT = 64 << 20
READ_S = 20.0
_EM_CUDA = 190

# By the part of a name before its first dot. U* and what is not here is looked up without the U.
_CLASSES = {
    "tensor": "HMMA IMMA BMMA DMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA"
    " UTCOMMA UTCMXQMMA",
    "fp32": "FADD FMUL FFMA FMNMX FMNMX3 FSEL FSET FSETP FSWZADD FCHK FADD2 FMUL2 FFMA2 FADD32I"
    " FFMA32I FMUL32I",
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HMNMX2 HSET2 HSETP2 HADD HFMA HMUL",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "special": "MUFU",
    "convert": "F2F F2I I2F F2FP FRND I2I I2IP I2FP F2IP I2I_SAT",
    "integer": "IADD IADD3 IADD32I IMAD IMAD32I IMUL IMUL32I IMNMX IMNMX3 VIADD VIADDMNMX VIMNMX"
    " VIMNMX3 IABS IDP IDP4A ISCADD ISCADD32I ISETP LEA LOP LOP3 LOP32I PLOP3 SHF SHL SHR BFE BFI"
    " BMSK BREV FLO POPC PRMT SGXT SEL ICMP PSETP",
    "load_global": "LDG LD TLD TLD4 TEX TLD4S SULD",
    "store_global": "STG ST SUST",
    "copy_async": "LDGSTS BLKCP TMALDG TMASTG TMAREDG TMAPF BLKRED BLKPF STAS LDGDEPBAR",
    "load_shared": "LDS LDSM LDTM",
    "store_shared": "STS STSM STTM",
    "local": "LDL STL",
    "constant": "LDC LDCU",
    "atomic": "ATOM ATOMG ATOMS RED REDG CREDUX SUATOM SURED",
    "shuffle": "SHFL VOTE VOTEU MATCH REDUX",
    "barrier": "BAR B2R MEMBAR DEPBAR ERRBAR SYNCS WARPSYNC FENCE CCTL ARRIVES ACQBULK"
    " ENDCOLLECTIVE WARPGROUP WARPGROUPSET CGABAR_ARV CGABAR_GET CGABAR_SET CGABAR_WAIT"
    " GETLMEMBASE",
    "branch": "BRA BRX BRXU BRK BSSY BSYNC BREAK CALL RET EXIT JMP JMX KILL PRET RTT YIELD ELECT"
    " NANOSLEEP BPT PREEXIT",
    "move": "MOV MOV32I MOVM R2UR S2R S2UR CS2R P2R R2P R2B S2D UCLEA PMTRIG LEPC SETMAXREG",
}
_CLASS = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
CLASSES = (*_CLASSES, "other")
_LINE = re.compile(r"\s*/\*[0-9a-f]{4,8}\*/\s+(?:@!?U?P[0-9T]+ +)?([A-Z][A-Z0-9_]*)((?:\.[\w:]+)*)")
_SECTION = re.compile(r"^\.text\.([^\s:]{1,20000}):")
_USAGE = re.compile(
    r"Function ([^\s:]{1,20000}):\s*\n"
    r"\s*REG:(\d{1,6}) STACK:(\d{1,9}) SHARED:(\d{1,9}) LOCAL:(\d{1,9})"
)
_TARGET = re.compile(r"^\s*\.target\s+(sm_\w{1,8})", re.M)
RESERVED = 1024  # bytes of shared memory that CUDA keeps for itself in a block, since sm_80


def instruction_class(name: str) -> str:
    """Returns the class of an instruction, by its name without what follows a dot."""
    return _CLASS.get(name) or _CLASS.get(name.removeprefix("U")) or "other"


def _width(modifiers: str) -> int:
    """Returns the bytes that an access moves for a thread."""
    m = re.search(r"\.(?:[US](?=8\b|16\b))?(8|16|64|128|256)\b", modifiers)
    return int(m[1]) // 8 if m else 4


def mixes(text: str) -> dict[str, Kernel]:
    """Returns the instruction mix of each kernel, by its name in the object, from what nvdisasm
    prints. What it spills stands in Kernel's fields for that.
    """
    found: dict[str, Kernel] = {}
    kernel = Kernel("")
    counts: dict[str, int] = {}
    moved: dict[str, list[int]] = {}

    def end() -> None:
        means = [
            round(sum(w) / len(w), 2) if (w := moved.get(kind)) else None
            for kind in ("load_global", "store_global")
        ]
        kernel.load_bytes, kernel.store_bytes = means

    for line in text.split("\n"):
        if m := _SECTION.match(line):
            end()
            counts, moved = {}, {}
            found[m[1]] = kernel = Kernel(m[1], instructions=counts)
        elif found and (m := _LINE.match(line)):
            if m[1] == "NOP":
                continue
            kind = instruction_class(m[1])
            counts[kind] = counts.get(kind, 0) + 1
            if kind in ("load_global", "store_global"):
                moved.setdefault(kind, []).append(_width(m[2]))
            elif kind == "local" and m[1] == "LDL":
                kernel.spill_load_bytes += _width(m[2])
            elif kind == "local":
                kernel.spill_store_bytes += _width(m[2])
    end()
    return found


def usage(text: str) -> list[Kernel]:
    """Returns what each kernel uses, from what ``cuobjdump -res-usage`` prints."""
    return [
        Kernel(
            name,
            registers=int(registers),
            shared_bytes=max(int(shared) - RESERVED, 0),
            stack_bytes=max(int(stack), int(local)),
        )
        for name, registers, stack, shared, local in _USAGE.findall(text)
    ]


def demangled(name: str) -> str:
    """Returns a kernel's name as its source has it."""
    if not name.startswith("_Z"):
        return name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return name
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    made = demangle(name.encode(), None, None, ctypes.byref(status))
    if not made:
        return name
    said = ctypes.string_at(made).decode(errors="replace")
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(made)
    return said


def _said(command: list[str], folder: str) -> str:
    """Returns the beginning of what a program prints, "" where it fails or takes too long."""
    with tempfile.TemporaryFile(dir=folder) as out:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=READ_S,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        if done.returncode:
            return ""
        out.seek(0)
        return out.read(MAX_TEXT).decode(errors="replace")


def _is_cubin(data: bytes) -> bool:
    return data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == _EM_CUDA


def _cubins(data: bytes, folder: str) -> list[tuple[str, dict[str, int]]]:
    """Writes the cubins of an object into a folder. Returns the path of each, with what its maker
    says of its kernels, by Kernel's fields. An object is a cubin, a shared library with some in it,
    or what was compiled when something was called.
    """
    if _is_cubin(data):
        path = os.path.join(folder, "0.cubin")
        with open(path, "wb") as f:
            f.write(data)
        return [(path, {})]
    if data[:2] == b"PK":
        return _of_called(data, folder)
    with open(os.path.join(folder, "object.so"), "wb") as f:
        f.write(data)
    _said([toolchain.cuobjdump(), "-xelf", "all", "object.so"], folder)
    made = sorted(n for n in os.listdir(folder) if n.endswith(".cubin"))
    return [(os.path.join(folder, n), {}) for n in made]


def _of_called(data: bytes, folder: str) -> list[tuple[str, dict[str, int]]]:
    found: list[tuple[str, dict[str, int]]] = []
    packed = os.path.join(folder, "kernels.zip")
    with open(packed, "wb") as f:
        f.write(data)
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        for i, name in enumerate(n for n in names if n.endswith(".cubin")):
            path = os.path.join(folder, f"{i}.cubin")
            with open(path, "wb") as f:
                f.write(archive.read(name))
            about = name.removesuffix(".cubin") + ".json"
            more: dict[str, int] = {}
            if about in names:
                said = json.loads(archive.read(about))
                for language in called_languages.named([name.partition("/")[0]]):
                    for ours, theirs in language.facts.items():
                        if type(said.get(theirs)) is int:
                            more[ours] = said[theirs]
            found.append((path, more))
    return found


def facts(data: bytes) -> list[Kernel]:
    """Returns what is known of each kernel in an object. Nothing where the toolkit's readers are
    not there, or the object is too large.
    """
    if len(data) > called_cache.MAX_BYTES or not toolchain.cuobjdump():
        return []
    if len(data) > MAX_OBJECT and data[:2] != b"PK":
        return []
    found: list[Kernel] = []
    with tempfile.TemporaryDirectory() as folder:
        for path, more in _cubins(data, folder)[:MAX_CUBINS]:
            text = _said([toolchain.nvdisasm(), "-c", path], folder)
            target = _TARGET.search(text)
            mixed = mixes(text)
            for used in usage(_said([toolchain.cuobjdump(), "-res-usage", path], folder)):
                mix = mixed.get(used.name, Kernel(""))
                if used.stack_bytes:
                    used.spill_store_bytes = mix.spill_store_bytes
                    used.spill_load_bytes = mix.spill_load_bytes
                used.instructions = mix.instructions
                used.load_bytes, used.store_bytes = mix.load_bytes, mix.store_bytes
                used.name, used.arch = demangled(used.name), target[1] if target else ""
                for fact, value in more.items():
                    setattr(used, fact, value)
                found.append(used)
    return found
