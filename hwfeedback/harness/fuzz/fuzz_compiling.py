"""What a compiler prints, and the flags that it is given: diagnostics are few and sound, and no
flag is let pass that loads code or names a file.
"""

from __future__ import annotations

import re
import shlex

import hostile

import building
import compiling
import sass

_LOG = b"""source0.cpp: In function 'void f()':
source0.cpp:3:9: error: 'x' was not declared in this scope
source1.cpp:12: fatal error: no.h: No such file or directory
/usr/bin/ld: main.o: undefined reference to `g'
source0.cpp:4:3: optimized: loop vectorized using 32 byte vectors
source0.cpp:9:3: missed: couldn't vectorize loop
source0.cpp:10:3: missed: not vectorized: complicated access pattern.
"""
_FORBIDDEN = ("-fplugin", "-B", "-I", "-o", "@", "-include", "-specs", "-wrapper", "-x", "-L")


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
    errors = compiling.errors(text)
    loops, missed = compiling.vectorisation(text)
    for found in (errors, loops, missed):
        assert len(found) <= compiling.MAX_DIAGNOSTICS
        for source, line, what in found:
            assert source >= 0 and line >= 0 and "\n" not in what and len(what) <= 500
        hostile.sendable([list(f) for f in found])
    assert not {f[:2] for f in loops} & {f[:2] for f in missed}, "vectorised and missed"
    said = [*sass.mixes(text).values(), *sass.usage(text).values(), *compiling.resources(text)]
    sound = building._resources(said)
    assert all(set(k.get("instructions", {})) <= set(sass.CLASSES) for k in sound)
    hostile.sendable(sound)
    assert sass.demangled(text) or not text
    problem = compiling.flags_problem([text])
    if problem:
        assert len(problem) < 600
        return
    for word in [*text.split(), *shlex.split(text)]:
        assert not word.startswith(_FORBIDDEN), word
        assert re.fullmatch(r"-[^\s/\x00]*", word), word
    assert not compiling.flags_problem(shlex.split(text))
