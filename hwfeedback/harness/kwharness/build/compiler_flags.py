"""What becomes of the flags that a candidate gives its compilers.

They are taken as they are: the sandbox bounds a compiler as it bounds all else. Three kinds are
not, and each is told: one that names an architecture becomes the device's, one that asks for a
report is left out, and one that names a program or a plugin to run is refused, because what is kept
under the hash of a source has to come of that source.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

MAX_WORDS, MAX_CHARACTERS = 500, 1 << 14
SHOWN = 100  # characters of a flag
OF_ANOTHER = " is another architecture's: "

# What g++ and what it starts run: plugins, another compiler, linker or mapper of modules; and files
# and specifications that could name one.
_RUNS = re.compile(
    r"-fplugin.*|-iplugindir.*|-wrapper.*|-B.*|--?specs.*|@.*|-fmodule-mapper.*|-fuse-ld=.*/.*"
)
_LINKER_RUNS = re.compile(r"--?plugin(=.*|-opt.*)?|@.*")
_NVCC_RUNS = re.compile(
    r"-ccbin(=.*)?|--compiler-bindir(=.*)?|--?run(-args)?(=.*)?|-optf(=.*)?|--options-file(=.*)?"
    r"|--?qpp-config(=.*)?"
)
_REPORTS = re.compile(
    r"-v|--verbose|-H|-Q|-f(time|mem|opt-info|diagnostics-).*|-fmessage-length.*|-time(=.*)?"
)
_NVCC_REPORTS = re.compile(r"-v|--verbose|--?time(=.*)?|--?resource-usage|-res-usage")
# With these nothing is built, but where they are left out.
_BUILDS_NOTHING = re.compile(
    r"-###|--?version|--?help(=.*)?|-dump(version|machine|specs)|-print-.*|-fsyntax-only"
)
_NVCC_BUILDS_NOTHING = re.compile(r"--?dryrun|-h|-V|--help|--version|--?list-gpu-(arch|code)")
_PTXAS_REPORTS = ("-v", "--verbose")
_NVCC_ARCHITECTURE = re.compile(
    r"(-arch|--gpu-architecture|-code|--gpu-code|-gencode|--generate-code)=.*"
)
_HOST_ARCHITECTURE = re.compile(r"-m(arch|cpu)=(?!native$).*")
# Flags of nvcc whose value may be the next word: with it they are one word.
_WITH_VALUE = frozenset(
    [
        "-arch", "--gpu-architecture", "-code", "--gpu-code", "-gencode", "--generate-code",
        "-Xptxas", "--ptxas-options", "-Xcompiler", "--compiler-options", "-Xlinker",
        "--linker-options", "-ccbin", "--compiler-bindir", "-optf", "--options-file",
        "-qpp-config", "--qpp-config", "--run-args", "-run-args",
    ]
)  # fmt: skip
_TO_HOST, _TO_LINKER = ("-Xcompiler", "--compiler-options"), ("-Xlinker", "--linker-options")
_TO_PTXAS = ("-Xptxas", "--ptxas-options")


class Refused(ValueError):
    """A flag is not taken. The message is one sentence."""


class Taken(NamedTuple):
    """The flags that a compiler is given, a word each, and a sentence on each change."""

    words: list[str]
    notes: list[str]


def taken(flags: Sequence[str], *, arch: str = "", shell: bool = True) -> Taken:
    """Returns what becomes of flags. Raises Refused.

    ``arch``: the architecture that nvcc compiles for, as "sm_90a"; "" for g++. ``shell``: whether a
    flag may be several words, with a shell's quotation marks, as torch has it.
    """
    words = _words(flags) if shell else list(flags)
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_CHARACTERS:
        raise Refused(f"its compiler flags are over {MAX_WORDS} words or {MAX_CHARACTERS} letters")
    if any("\0" in w for w in words):
        raise Refused("a compiler flag holds a null byte")
    kept: list[str] = []
    notes: list[str] = []
    for word in _joined(words) if arch else words:
        kept += _of_nvcc(word, arch, notes) if arch else _of_host(word, notes)
    for flag in flags if shell else ():
        if _read_by_a_shell(flag):
            raise Refused(f"{_named(flag)} has a character that a shell acts on, and torch has one")
    return Taken(kept, list(dict.fromkeys(notes)))


def _words(flags: Sequence[str]) -> list[str]:
    out: list[str] = []
    for flag in flags:
        try:
            out += shlex.split(flag)
        except ValueError:
            shown = repr(flag)[:SHOWN]
            raise Refused(
                f"the compiler flag {shown} has a quotation mark without its other"
            ) from None
    return out


def _read_by_a_shell(flag: str) -> bool:
    """Whether a shell would do something with a flag but part it into words."""
    lexer = shlex.shlex(flag, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = shlex.split(flag)
    return (
        "$" in flag or "`" in flag or list(lexer) != words or any(w[0] == "#" for w in words if w)
    )


def _joined(words: Sequence[str]) -> list[str]:
    out: list[str] = []
    for word in words:
        if out and out[-1] in _WITH_VALUE:
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


def _of_host(word: str, notes: list[str]) -> list[str]:
    """The rule for one word of g++'s."""
    pieces = word.split(",")[1:] if word.startswith("-Wl,") else [word]
    if _RUNS.fullmatch(word) or any(map(_LINKER_RUNS.fullmatch, pieces)):
        raise _runs(word)
    if _BUILDS_NOTHING.fullmatch(word):
        raise Refused(f"with {_named(word)} nothing is built: leave it out")
    if _REPORTS.fullmatch(word):
        notes.append(_left_out(word))
        return []
    if _HOST_ARCHITECTURE.fullmatch(word):
        notes.append(f"{_named(word)}{OF_ANOTHER}it is compiled for this processor")
        return ["-march=native"]
    return [word]


def _of_nvcc(word: str, arch: str, notes: list[str]) -> list[str]:
    """The rule for one word of nvcc's, which hands some on to others."""
    option, _, value = word.partition("=")
    if _NVCC_RUNS.fullmatch(word) or _RUNS.fullmatch(word):
        raise _runs(word)
    if _NVCC_ARCHITECTURE.fullmatch(word):
        if not _is(value, arch):
            notes.append(f"{_named(word)}{OF_ANOTHER}it is compiled for {arch}")
        return []
    if _NVCC_BUILDS_NOTHING.fullmatch(word):
        raise Refused(f"with {_named(word)} nothing is built: leave it out")
    if _NVCC_REPORTS.fullmatch(word):
        notes.append(_left_out(word))
        return []
    if option in (*_TO_HOST, *_TO_LINKER, *_TO_PTXAS) and value:
        return _handed_on(option, value.split(","), notes)
    return [word]


def _handed_on(option: str, pieces: Sequence[str], notes: list[str]) -> list[str]:
    kept: list[str] = []
    for piece in pieces:
        if option in _TO_HOST:
            kept += _of_host(piece, notes)
        elif option in _TO_LINKER and _LINKER_RUNS.fullmatch(piece):
            raise _runs(piece)
        elif option in _TO_PTXAS and piece in _PTXAS_REPORTS:
            notes.append(_left_out(f"{option} {piece}"))
        else:
            kept.append(piece)
    return [f"{option}={','.join(kept)}"] if kept else []


def _is(value: str, arch: str) -> bool:
    """Whether a value names this architecture alone: "sm_90a" is that of sm_90, too."""
    number = re.escape(re.sub(r"\D", "", arch))
    real = rf"(sm|compute)_{number}[af]?"
    return re.fullmatch(rf"native|{real}|arch=compute_{number}[af]?,code={real}", value) is not None


def _named(word: str) -> str:
    return f"the compiler flag {word!r:.{SHOWN}}"


def _left_out(word: str) -> str:
    return f"{_named(word)} asks for a report: it is left out"


def _runs(word: str) -> Refused:
    return Refused(f"{_named(word)} names a program or a plugin to run, which is refused")
