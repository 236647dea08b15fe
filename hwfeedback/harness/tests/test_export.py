from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import export
import source

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
    text = export.standalone(CANDIDATE.format(form=imports, call=call))
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
        [sys.executable, "-I", "-B", str(path)], env=env, capture_output=True, text=True
    )
    assert done.stdout == "stands\n", done.stderr


def test_other_files_are_unchanged():
    text = "import torch\n\nclass ModelNew: pass\n"
    assert export.standalone(text) == text


def test_text_beside_the_import_is_unchanged():
    text = CANDIDATE.format(form="from kernelwright import native  # ours é", call="native")
    got = export.standalone(text)
    for line in text.splitlines():
        if "import native" not in line:
            assert line in got
    assert "# ours é" in got


def test_exporting_is_stable_and_parses():
    text = CANDIDATE.format(form="from kernelwright import native", call="native")
    got = export.standalone(text)
    compile(got, "x.py", "exec")
    assert export.standalone(text) == got
    assert export.standalone(got) == got
    with pytest.raises(SyntaxError):
        export.standalone("(")


def test_examples_export(tmp_path):
    folder = pathlib.Path(__file__).parents[3] / "examples" / "candidates"
    for path in folder.glob("*_native.py"):
        compile(export.standalone(path.read_text()), path.name, "exec")


@pytest.mark.parametrize(
    "imports",
    [
        "from kernelwright import native",
        "from kernelwright import native as n",
        "import kernelwright",
    ],
)
def test_a_standalone_file_goes_back_to_what_it_was_made_from(imports: str) -> None:
    text = f'"""Doc."""\nimport torch\n{imports}\n\nclass ModelNew(torch.nn.Module):\n    pass\n'
    back = export.original(export.standalone(text))
    assert export.LOADER not in back
    assert source.parse(back, "candidate")["problems"] == []
    assert export.standalone(back) == export.standalone(text)
    assert export.original(text) == text
