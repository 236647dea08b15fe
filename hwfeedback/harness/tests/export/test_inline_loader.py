from __future__ import annotations

import os
import pathlib
import runpy
import signal
import subprocess
import sys
import traceback

import pytest
import waiting

from kwharness.build import source
from kwharness.export import file_loader, inline_loader
from kwharness.machine import toolchain

CANDIDATE = '''"""A candidate."""

from __future__ import annotations

import torch, math
{form}
FLAGS = "this name is also the loader's"

lib = {call}(source=r"""
extern "C" void twice(const float* x, float* y, long long n) {{
    for (long long i = 0; i < n; i++) y[i] = 2 * x[i];
}}
""")


class ModelNew(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
'''
FORMS = {
    "from": ("from kernelwright import native", "native"),
    "from_as": ("from kernelwright import native as build; a = 1", "build"),
    "plain": ("import kernelwright", "kernelwright.native"),
    "plain_as": ("import os, kernelwright as kw, sys", "kw.native"),
    "nested": ("if True:\n    from kernelwright import (\n        native,\n    )", "native"),
}


@pytest.mark.parametrize("form", FORMS)
def test_exported_file_stands_alone(form, tmp_path):
    imports, call = FORMS[form]
    text = inline_loader.standalone(CANDIDATE.format(form=imports, call=call))
    assert text.startswith('"""A candidate."""\n\nfrom __future__')
    path = tmp_path / "twice_best.py"
    check = (
        "\nassert torch.equal(ModelNew()(torch.ones(5)), torch.full((5,), 2.0))\n"
        "import sys\nassert 'kernelwright' not in sys.modules\nassert FLAGS.startswith('this')\nprint('stands')\n"  # noqa: E501
    )
    path.write_text(text + check)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "ext"),
    }
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "stands\n", done.stderr


def test_other_files_are_unchanged():
    text = "import torch\n\nclass ModelNew: pass\n"
    assert inline_loader.standalone(text) == text


def test_text_beside_the_import_is_unchanged():
    text = CANDIDATE.format(form="from kernelwright import native  # ours é", call="native")
    got = inline_loader.standalone(text)
    for line in text.splitlines():
        if "import native" not in line:
            assert line in got
    assert "# ours é" in got


def test_exporting_is_stable_and_parses():
    text = CANDIDATE.format(form="from kernelwright import native", call="native")
    got = inline_loader.standalone(text)
    compile(got, "x.py", "exec")
    assert inline_loader.standalone(text) == got
    assert inline_loader.standalone(got) == got
    with pytest.raises(SyntaxError):
        inline_loader.standalone("(")


def test_examples_export(tmp_path):
    folder = pathlib.Path(__file__).parents[4] / "examples" / "candidates"
    for path in folder.glob("*_native.py"):
        compile(inline_loader.standalone(path.read_text()), path.name, "exec")


@pytest.mark.parametrize("form", FORMS)
def test_a_standalone_file_is_read_as_what_it_was_made_from(form: str) -> None:
    imports, call = FORMS[form]
    text = CANDIDATE.format(form=imports.replace("os, ", "").replace(", sys", ""), call=call)
    said = source.parse(text, "candidate")
    read = inline_loader.read_as(inline_loader.standalone(text))
    again = source.parse(read, "candidate")
    assert said.problems == again.problems == []
    assert (again.language, again.form) == (said.language, said.form)
    given_out = inline_loader.standalone(text).splitlines()
    kept = [at for at, line in enumerate(read.splitlines()) if line == given_out[at]]
    assert len(kept) > len(text.splitlines())  # and those of the loader that are empty


# What only looks like an exported file, or like what is in one, is nobody's to change.
LOOKS = 'note = """\nnative = _kernelwright_loader.native\n"""\nx = "a = _kernelwright_loader.b"\n'


@pytest.mark.parametrize(
    "change",
    [
        lambda given_out: given_out + LOOKS,
        lambda given_out: LOOKS + given_out,
        lambda given_out: given_out.replace("\n", "\r\n"),
        lambda given_out: given_out.replace("hashlib.sha256(", "hashlib. sha256("),
        lambda given_out: given_out.replace("subprocess.run(", "subprocess. run("),
        lambda given_out: f"x = r'''{given_out}'''\nclass ModelNew: pass\n",
        lambda given_out: LOOKS,
    ],
)
@pytest.mark.parametrize("form", ["from", "plain"])  # with the short loader, and the whole one
def test_what_looks_like_an_exported_file_is_itself(change, form: str) -> None:
    imports, call = FORMS[form]
    given_out = inline_loader.standalone(CANDIDATE.format(form=imports, call=call))
    assert (file_loader.MARK in given_out) == (form == "from")
    text = change(given_out)
    assert text != given_out and inline_loader.standalone(text) == text
    read = inline_loader.read_as(text)
    assert read == text or "import kernelwright" in read or "from kernelwright" in read
    assert ("hashlib. sha256" in text or "subprocess. run" in text) <= (read == text), (
        "its loader is its own"
    )
    assert len(read.split("\n")) == len(text.split("\n"))
    assert LOOKS not in text or LOOKS in read


@pytest.mark.parametrize(
    "text",
    [
        "import torch\r\n\r\nclass ModelNew: pass\r\n",
        "import torch\rclass ModelNew: pass\r",
        "\ufeffimport torch\nclass ModelNew: pass",
        "x = '''a\r\nb\rc'''  \n\n\n",
        "# -*- coding: utf-8 -*-\nx = 'é'\n",
        "x = '\u2028'\x0c\n",
    ],
)
def test_a_file_that_stands_alone_is_exported_to_the_last_byte(text: str) -> None:
    assert inline_loader.standalone(text) == text == inline_loader.read_as(text)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_keep_their_ends(end: str, mark: str) -> None:
    text = CANDIDATE.format(form=FORMS["nested"][0], call="native").replace("\n", end)
    got = inline_loader.standalone(mark + text)
    compile(got.encode(), "x.py", "exec")
    assert got.startswith(mark + '"""A candidate."""' + end)
    for line in text.split(end):
        if "native" not in line and "import (" not in line and line.strip("() "):
            assert line + end in got


def exported_lines(text: str) -> int:
    """How many lines of ours an exported file has beside its own."""
    got = inline_loader.standalone(text)
    assert file_loader.MARK in got, got
    return len(got.splitlines()) - len(text.splitlines())


def test_a_loader_is_what_its_kernel_needs() -> None:
    """At most 80 lines for a kernel of one function, with the class in front."""
    folder = pathlib.Path(__file__).parents[4] / "examples" / "candidates"
    for path in folder.glob("*_native.py"):
        assert exported_lines(path.read_text()) <= 80, path
    assert exported_lines(CANDIDATE.format(form=FORMS["from"][0], call="native")) <= 80


SHORT = CANDIDATE.format(form=FORMS["from"][0], call="native")
AS_IT_IS = 'lib = native(source=r"""'


@pytest.mark.parametrize(
    "text",
    [
        SHORT.replace(AS_IT_IS, 'lib = native(source=str() + r"""'),
        SHORT.replace(AS_IT_IS, 'lib = (lambda **a: native(**a))(source=r"""'),
        SHORT.replace(AS_IT_IS, 'build = native\nlib = build(source=r"""'),
        SHORT.replace(
            'extern "C" void twice(', 'extern "C" void thrice(float*);\nextern "C" void twice('
        ),
        SHORT + "\n\ndef _load():\n    pass\n",
    ],
)
def test_what_has_no_short_loader_has_the_whole_one(text: str, tmp_path: pathlib.Path) -> None:
    got = inline_loader.standalone(text)
    assert file_loader.MARK not in got and inline_loader.LOADER in got


def said_by(text: str, tmp_path: pathlib.Path, **env: str) -> str:
    """What a file says that is run in a fork of this process, which has imported torch. That one
    stands alone in an interpreter of its own is asked above.
    """
    path, said = tmp_path / "file.py", tmp_path / "said"
    path.write_text(text)
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), 1)
            os.dup2(1, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w")
            os.environ.clear()
            os.environ |= given
            try:
                runpy.run_path(str(path), run_name="__main__")
                code = 0
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    try:
        waiting.until(lambda: os.waitpid(child, os.WNOHANG)[0], "the end of an exported file")
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return said.read_text()


CALLS = """
import copy, threading
copy.deepcopy(ModelNew())(torch.ones(3))
ts = [threading.Thread(target=lambda: ModelNew()(torch.ones(3))) for _ in range(2)]
[t.start() for t in ts], [t.join() for t in ts]
for args in ((torch.ones(3), torch.ones(4, 2)[:, 0], 3), (torch.ones(3).double(), None, 3)):
    try:
        lib.twice(*args)
    except (ValueError, TypeError) as e:
        print(e)
try:
    lib.thrice(1)
except AttributeError as e:
    print(e)
"""


def test_what_a_short_loader_says(tmp_path: pathlib.Path) -> None:
    got = inline_loader.standalone(SHORT)
    said = said_by(got + CALLS, tmp_path).splitlines()
    assert said == [
        "twice: argument 'y' must be contiguous, has strides (2,)",
        "twice: argument 'x' must be torch.float32, is torch.float64",
        "'_native' object has no attribute 'thrice'",
    ]
    call = "\nModelNew()(torch.ones(3))\nprint('done')\n"
    assert "nothere was not found: install g++" in said_by(
        got + call, tmp_path, CXX="nothere", TORCH_EXTENSIONS_DIR=str(tmp_path / "a")
    )
    broken = got.replace("y[i] = 2 * x[i]", "y[i] = 2 * z[i]") + call
    assert "native does not compile:" in said_by(broken, tmp_path)
    (tmp_path / "file").write_text("")  # no folder can be made there
    assert said_by(got + call, tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "file")) == "done\n"


def test_a_whole_loader_compiles_where_no_folder_can_be_made(tmp_path: pathlib.Path) -> None:
    """And a copy of what holds its library holds the same."""
    got = inline_loader.standalone(SHORT.replace(AS_IT_IS, 'lib = native(source=str() + r"""'))
    assert inline_loader.LOADER in got
    (tmp_path / "file").write_text("")
    call = "\nimport copy\nassert copy.deepcopy([lib])[0] is lib\n"
    call += "ModelNew()(torch.ones(3))\nprint('done')\n"
    assert said_by(got + call, tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "file")) == "done\n"


def test_a_file_whose_kernel_is_edited_is_read_as_before() -> None:
    """Whoever tunes a number in an exported file is judged as in the native form."""
    edited = inline_loader.standalone(SHORT).replace("y[i] = 2 * x[i]", "y[i] = x[i] + x[i]")
    read = inline_loader.read_as(edited)
    assert "from kernelwright import native as _native" in read and file_loader.MARK not in read
    other = inline_loader.standalone(SHORT).replace("long long n)", "int n)")
    assert inline_loader.read_as(other) == other  # its loader is its own: it does not fit any more


IN_CUDA = '''import torch
from kernelwright import native

# Not linked: pip's toolkit lacks what nvcc would link by itself.
lib = native(language="cuda", flags=("-cudart=none", "-cudadevrt=none"), source=r"""
#include <cstdio>
__global__ void each(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
extern "C" void twice(const float* x, float* y, int n, cudaStream_t stream) {
    printf("on stream %lld\\n", (long long)stream);
    fflush(stdout);
    each<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
'''
# As if there were a GPU, as far as the launch.
AS_IF = """
import ctypes, glob, os, torch
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: 77
for path in glob.glob(os.environ["RUNTIME"] + "/lib*/libcudart.so.*"):
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
"""
CUDA_CALLS = """
for args in ((torch.ones(3), None, 3), (None, None, 2**31), (None, None, 3)):
    try:
        lib.twice(*args)
    except (ValueError, OverflowError, RuntimeError) as e:
        print(type(e).__name__, e, flush=True)
"""


def test_a_loader_of_cuda_is_as_short() -> None:
    folder = pathlib.Path(__file__).parents[4] / "examples" / "candidates"
    text = (folder / "softmax_cuda.py").read_text()
    assert exported_lines(text) <= 80
    got = inline_loader.standalone(text)
    compile(got, "best.py", "exec")
    read = inline_loader.read_as(got)
    assert "from kernelwright import native as _native" in read and file_loader.MARK not in read
    assert len(read.splitlines()) == len(got.splitlines())
    for other in ("softmax_cuda_kernel", "softmax_cute"):  # by NVRTC; with headers of CUTLASS
        assert file_loader.MARK not in inline_loader.standalone(
            (folder / f"{other}.py").read_text()
        )


def test_a_file_of_both_languages_has_the_whole_loader() -> None:
    both = SHORT + "\nother = native(language='cuda', source='extern \"C\" void f() {}')\n"
    assert file_loader.MARK not in inline_loader.standalone(both)


@pytest.mark.skipif(not toolchain.nvcc(), reason=toolchain.NO_NVCC)
def test_what_a_loader_of_cuda_says(tmp_path: pathlib.Path) -> None:
    got = inline_loader.standalone(IN_CUDA)
    assert file_loader.MARK in got
    home = os.path.dirname(os.path.dirname(toolchain.nvcc()))
    said = said_by(AS_IF + got + CUDA_CALLS, tmp_path, CUDA_HOME=home, RUNTIME=home).splitlines()
    assert said[:3] == [
        "ValueError twice: argument 'x' must be on the GPU, is on cpu",
        "OverflowError twice: argument 'n' = 2147483648 does not fit int",
        "on stream 77",
    ]
    assert said[3].startswith("RuntimeError twice: ") and "CUDA" in said[3]  # there is no driver
    (built,) = tmp_path.glob(".cache/torch_extensions/kernelwright/native-*.so")
    assert built.stat().st_size
    call = "\nlib.twice(None, None, 3)\n"
    none = said_by(AS_IF + got + call, tmp_path, CUDA_HOME="/no", RUNTIME=home, HOME="/proc/none")
    assert "nvcc was not found: install the CUDA toolkit, or set CUDA_HOME" in none
    broken = got.replace("2 * x[i]", "2 * z[i]") + call
    assert "native does not compile:" in said_by(
        AS_IF + broken, tmp_path, CUDA_HOME=home, RUNTIME=home
    )
