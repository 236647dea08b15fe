"""Forms of custom code: what each row answers for, and that another row is all that a build needs
of another one.
"""

from __future__ import annotations

import ast
import ctypes
import pathlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import kernelwright
from kwharness.base.built import BuildRequest, Failed
from kwharness.base.for_builder import Compiled
from kwharness.build import artifacts, compilers, form_extension, form_native, forms, source
from kwharness.build.form import Form, Way
from kwharness.machine import toolchain

TEXT = '''
import plain_c

lib = plain_c.build("""int twice(int x) { return 2 * x; }""")


class ModelNew:
    def forward(self, x):
        return lib.twice(x)
'''


def _request(text: str) -> BuildRequest:
    return {"kind": "plain_c", "name": "plain_c", "source": text, "flags": []}


def _replace(way: Way) -> None:
    def build(text: str) -> Any:
        path = way.path(_request(text) | {"request": toolchain.key("plain_c", text)})
        if way.stands_in is not None:
            return way.stands_in()
        way.loaded[path] = types.SimpleNamespace(twice=ctypes.CDLL(path).twice)
        return way.loaded[path]

    module: Any = types.ModuleType("plain_c")
    module.build = build
    sys.modules["plain_c"] = module


def _checked(raw: Mapping[str, Any], arch: str, whole: bool) -> BuildRequest:
    assert (arch, whole) == ("", False)
    if not isinstance(raw["source"], str):
        raise ValueError("source")
    return _request(raw["source"]) | {"request": toolchain.key("plain_c", raw["source"])}


def _compile(request: BuildRequest, folder: str, light: str) -> Compiled:
    pathlib.Path(folder, "main.c").write_text(request["source"])
    code, log = compilers.run(
        [toolchain.compiler(), "-shared", "-fPIC", "-x", "c", "main.c", "-o", "built.so"], folder
    )
    return Compiled(code, log, object=str(pathlib.Path(folder, "built.so")) if code == 0 else "")


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A language more. What this process builds with is put back."""
    row = Form(
        "plain_c",
        calls=re.compile(r"plain_c\.build"),
        language=lambda _: "c",
        replace=_replace,
        checked=_checked,
        compile=_compile,
    )
    of_native = kernelwright.native.__globals__
    for name in ("_build", "Library"):
        monkeypatch.setitem(of_native, name, of_native[name])
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, row))
    monkeypatch.setattr(forms, "CALLS", re.compile(rf"{forms.CALLS.pattern}|plain_c\.build"))
    yield
    sys.modules.pop("plain_c", None)
    sys.modules.pop(form_extension.EXTENSION, None)


def _run() -> Any:
    module: dict[str, Any] = {}
    exec(compile(TEXT, "candidate.py", "exec"), module)
    return module["ModelNew"]()


@pytest.mark.usefixtures("another")
def test_another_language_is_a_row(tmp_path: pathlib.Path) -> None:
    told = source.parse(TEXT, "candidate")
    assert (told.language, told.form, told.lazy, told.problems) == (
        "c", "plain_c", False, [],
    )  # fmt: skip
    noted = artifacts.Noted()
    recorder = artifacts.record(noted)
    assert _run().forward(21) is None and recorder.called
    (asked,) = noted.requests
    request = forms.checked_request(asked, "")
    assert request["request"] == asked["request"]
    built = forms.compile_request(request, str(tmp_path)).object
    with open(built, "rb") as f:
        artifacts.install(artifacts.Objects([asked], [f.fileno()]))
        assert _run().forward(21) == 42
    assert list(artifacts.functions()) == ["twice"]
    artifacts.stand_in(artifacts.Objects())
    assert _run().forward(21) is None


@pytest.mark.usefixtures("another")
def test_its_requests_are_foreign(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="source"):
        forms.checked_request({"kind": "plain_c", "source": 1}, "")
    broken = forms.checked_request({"kind": "plain_c", "source": "int f( {"}, "")
    report = forms.compile_request(broken, str(tmp_path))
    assert not report.object and "main.c" in report.log


@pytest.mark.parametrize("kind", ["", "triton", "header", "plain_c", None])
def test_what_is_no_form_is_not_built(kind: object) -> None:
    with pytest.raises((KeyError, TypeError)):
        forms.checked_request({"kind": kind}, "sm_90a")


@pytest.mark.parametrize(
    ("call", "form", "language"),
    [
        ("native('x')", form_native.FORM, ""),
        ("native('x', 'cuda')", form_native.FORM, "cuda"),
        ("native('x', language='cuda')", form_native.FORM, "cuda"),
        ("native('x', language=which)", form_native.FORM, ""),
        ("load_inline('x', cuda_sources='y')", form_extension.INLINE, "cuda"),
        ("load_inline('x', cuda_sources=[])", form_extension.INLINE, ""),
        ("load('x', ['a.cpp', 'b.cu'])", form_extension.WORK_FOLDER, "cuda"),
        ("load('x', ['a.cpp'])", form_extension.WORK_FOLDER, ""),
    ],
)
def test_a_call_tells_its_language(call: str, form: Form, language: str) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call) and form.language(node) == language


def test_the_first_form_that_is_used_is_the_files() -> None:
    inline = (
        "from torch.utils.cpp_extension import load_inline\nload_inline('x', cuda_sources='y')\n"
    )
    for before, form, language in [
        ("import triton\n", "load_inline", "cuda"),
        ("import kernelwright\nkernelwright.native('x')\n", "native", "cuda"),
        ("", "load_inline", "cuda"),
    ]:
        told = source.parse(before + inline + "class ModelNew: pass\n", "candidate")
        assert (told.form, told.language) == (form, language)


def test_cuda_is_refused_where_there_is_no_gpu() -> None:
    asked = form_native.request_of('extern "C" __global__ void f() {}', (), "f", "cuda")
    with pytest.raises(Failed):
        forms.checked_request(asked, "")
    assert forms.checked_request(asked, "sm_90a")["launched"]
