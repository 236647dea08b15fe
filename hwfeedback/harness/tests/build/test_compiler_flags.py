"""What becomes of a candidate's compiler flags."""

from __future__ import annotations

import pytest

import kernelwright
from kwharness.build import compiler_flags

ARCH = "sm_90a"
# What people leave in: another device's, ptxas's, the host compiler's, a path's.
LEFT_IN = [
    "-arch=sm_70", "-O3", "-std=c++17", "-Xptxas", "-v", "-Xptxas", "-maxrregcount=64",
    "-Xcompiler", "-fno-strict-aliasing", "--threads", "4", "-lineinfo", "-I/opt/include",
    "--generate-code=arch=compute_80,code=[compute_80,sm_80]",
]  # fmt: skip


def test_what_people_leave_in_is_taken() -> None:
    taken = compiler_flags.taken(LEFT_IN, arch=ARCH)
    assert taken.words == [
        "-O3", "-std=c++17", "-Xptxas=-maxrregcount=64", "-Xcompiler=-fno-strict-aliasing",
        "--threads", "4", "-lineinfo", "-I/opt/include",
    ]  # fmt: skip
    assert sum("compiled for sm_90a" in n for n in taken.notes) == 2
    assert sum("asks for a report" in n for n in taken.notes) == 1
    host = ["-O3", "-march=native", "-Wall", "-I/etc", "-Wl,-rpath,/x", "-L/x", "-include", "a.h"]
    assert compiler_flags.taken(host) == (host, [])


def test_the_devices_own_architecture_is_nothing_to_tell_of() -> None:
    for own in (
        ["-arch=sm_90"],
        ["-arch", "native"],
        ["-gencode=arch=compute_90,code=sm_90"],
        ["-gencode", "arch=compute_90a,code=sm_90a"],
        ["-arch=sm_90a --use_fast_math"],
    ):
        taken = compiler_flags.taken(own, arch=ARCH)
        assert taken.notes == [] and set(taken.words) <= {"--use_fast_math"}
    assert compiler_flags.taken(["-Xptxas -O3", "-Xptxas", "-dlcm=ca"], arch=ARCH).words == [
        "-Xptxas=-O3", "-Xptxas=-dlcm=ca",
    ]  # fmt: skip


def test_a_processors_becomes_this_ones() -> None:
    taken = compiler_flags.taken(["-march=sapphirerapids", "-mavx2", "-mtune=skylake"])
    assert taken.words == ["-march=native", "-mavx2", "-mtune=skylake"]
    assert "this processor" in taken.notes[0]


@pytest.mark.parametrize(
    "given", ["-v", "-ftime-report", "-fopt-info-all=x", "-fdiagnostics-format=json", "-Q"]
)
def test_a_report_is_left_out(given: str) -> None:
    words, notes = compiler_flags.taken([given, "-O2"])
    assert words == ["-O2"] and "report" in notes[0]


@pytest.mark.parametrize(
    "given",
    [
        "-fplugin=/tmp/x.so", "-fplugin-arg-x-y=z", "-B /tmp", "-B/tmp", "-specs=x", "--specs=x",
        "-wrapper gdb,--args", "@flags", "-Wl,--plugin=x", "-Wl,-O1,-plugin,x", "-Xlinker -plugin",
        "-fmodule-mapper=|sh", "-fuse-ld=/tmp/ld",
    ],
)  # fmt: skip
def test_what_names_a_program_is_refused(given: str) -> None:
    with pytest.raises(compiler_flags.Refused, match="names a program or a plugin"):
        compiler_flags.taken([given])
    with pytest.raises(compiler_flags.Refused, match="names a program or a plugin"):
        compiler_flags.taken(["-Xcompiler " + given.replace(" ", ",")], arch=ARCH)


@pytest.mark.parametrize("given", ["-###", "-dumpversion", "--help", "-print-file-name=x"])
def test_with_what_nothing_is_built_is_refused(given: str) -> None:
    with pytest.raises(compiler_flags.Refused, match="nothing is built: leave it out"):
        compiler_flags.taken([given])
    for one in (f"-Xcompiler={given}", "--dryrun", "-V"):
        with pytest.raises(compiler_flags.Refused, match="nothing is built"):
            compiler_flags.taken([one], arch=ARCH)


@pytest.mark.parametrize(
    "given", ["-DX=$HOME", "-DX=`id`", "-DX;id", "-DX>y", "-DX=(1)", "-DX # a", "-DX&"]
)
def test_what_a_shell_would_act_on_is_refused(given: str) -> None:
    with pytest.raises(compiler_flags.Refused, match="a character that a shell acts on"):
        compiler_flags.taken([given])
    assert compiler_flags.taken([given], shell=False).words == [given]
    assert compiler_flags.taken(["'-DX=(1;2)'"]).words == ["-DX=(1;2)"]


ARCHITECTURES = [
    *LEFT_IN, "-arch", "sm_80", "-gencode", "arch=compute_80,code=sm_80", "-Xcompiler",
    "-march=skylake,-O2", "--compiler-options=-mcpu=power9", "-Xcompiler=-march=native",
    "-code=sm_70",
]  # fmt: skip


def test_a_loader_takes_the_same_architectures() -> None:
    """An exported file has none of this module: its loader goes by the rule that is in it."""
    plain = [f for f in ARCHITECTURES if f not in ("-Xptxas", "-v", "-maxrregcount=64")]
    wanted = tuple(compiler_flags.taken(plain, arch=ARCH, shell=False).words)
    assert kernelwright._of_this_machine(plain, "cuda") == wanted
    host = ["-march=skylake", "-mcpu=x", "-march=native", "-mtune=skylake", "-O3"]
    wanted = tuple(compiler_flags.taken(host, shell=False).words)
    assert kernelwright._of_this_machine(host, "cpp") == wanted


@pytest.mark.parametrize(
    "given",
    ["-ccbin /tmp/x", "-ccbin=x", "--compiler-bindir=x", "--run", "-optf x", "-Xlinker=-plugin"],
)
def test_so_it_is_of_nvcc(given: str) -> None:
    with pytest.raises(compiler_flags.Refused, match="names a program or a plugin"):
        compiler_flags.taken([given], arch=ARCH)


def test_what_is_no_flag_is_refused_in_a_sentence() -> None:
    for given, said in ((['-DX="'], "quotation mark"), (["-D" + "X" * 20000], "over 500 words")):
        with pytest.raises(compiler_flags.Refused, match=said):
            compiler_flags.taken(given)
    assert compiler_flags.taken(["-DX=a b"], shell=False).words == ["-DX=a b"]
