"""What a compiler prints, and the flags that it is given: diagnostics are few and sound, and no
flag is let pass that names a program or a plugin.
"""

from __future__ import annotations

import hostile

from kwharness.build import compiler_flags, diagnostics, reports, sass

_LOG = b"""source0.cpp: In function 'void f()':
source0.cpp:3:9: error: 'x' was not declared in this scope
source1.cpp:12: fatal error: no.h: No such file or directory
/usr/bin/ld: main.o: undefined reference to `g'
source0.cpp:4:3: optimized: loop vectorized using 32 byte vectors
source0.cpp:9:3: missed: couldn't vectorize loop
source0.cpp:10:3: missed: not vectorized: complicated access pattern.
"""
_FORBIDDEN = ("-fplugin", "-B", "@", "-specs", "--specs", "-wrapper", "-fmodule-mapper")
_OF_NVCC = (*_FORBIDDEN, "-ccbin", "--compiler-bindir", "--run", "-optf", "--options-file", "-arch")


def seeds() -> list[bytes]:
    return [
        _LOG,
        b"source99999999999999999999.cpp:1:1: error: x\n" * 3,
        b"-O3 -march=native -DX=1 -lm",
        b'-DX="a b"',
        b"-DX='",
        b"-fopenmp\n-fplugin=x.so",
        b"-Wl,-rpath,/x",
        b"--param=x=1 -std=c++20 -g",
        b"\t.target\tsm_90\n.text._Z1fv:\n  /*0150*/  @!P0 LDG.E.128 R4 ;\n  /*0160*/ STL R1 ;\n",
        b" Function _Z1fv:\n  REG:24 STACK:8 SHARED:1152 LOCAL:0 CONSTANT[0]:548\n",
        b"Compiling entry function 'k' for 'sm_90a'\nUsed 24 registers, 128 bytes smem",
    ]


def one(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    errors = diagnostics.errors(text)
    loops, missed = diagnostics.vectorisation(text)
    for found in (errors, loops, missed):
        assert len(found) <= diagnostics.MAX_DIAGNOSTICS
        for source, line, what in found:
            assert source >= 0 and line >= 0 and "\n" not in what and len(what) <= 500
        hostile.sendable([list(f) for f in found])
    assert not {f[:2] for f in loops} & {f[:2] for f in missed}, "vectorised and missed"
    said = [*sass.mixes(text).values(), *sass.usage(text), *diagnostics.resources(text)]
    sound = reports.resources([k.to_json() for k in said])
    assert all(set(k.instructions or ()) <= set(sass.CLASSES) for k in sound)
    hostile.sendable([k.to_json() for k in sound])
    assert sass.demangled(text) or not text
    for arch, forbidden in (("", _FORBIDDEN), ("sm_90a", _OF_NVCC)):
        try:
            words, notes = compiler_flags.taken([text], arch=arch)
        except compiler_flags.Refused as e:
            assert 0 < len(str(e)) < 600
            continue
        assert not any(w.startswith(forbidden) and w != "-arch" for w in words), words
        assert not any("-fplugin" in w or "--plugin" in w for w in words if w[0:2] in ("-X", "-W"))
        assert all(len(n) < 600 for n in notes)
        hostile.sendable([words, notes])
        if not arch:
            assert compiler_flags.taken(words, shell=False).words == words, "it is not what it was"
