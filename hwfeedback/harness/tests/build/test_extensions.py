"""Extensions that are built anywhere: honest kernels of such forms pass, and what does not compile
is told first.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from evaluating import Evaluator, evaluate, new_cache
from test_honest import Suite

from kwharness.base.requests import Candidate
from kwharness.build import build_process, builder_client
from kwharness.machine import toolchain

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

HERE = pathlib.Path(__file__).parents[1]
FORMS = HERE / "forms"
KERNELS = {f.stem: f for f in sorted((HERE / "honest" / "extensions").glob("*.py"))}
# With PyTorch's headers, half a minute; every day load_inline is built in other forms.
LONG = {"load_from_a_folder", "operators_of_a_library"}
# What they fall back from is told.
FALLS_BACK = {"fifth_fallback_compiles", "extension_for_a_gpu_or_this"}
TASK = (FORMS / "ref.py").read_text()
SOURCE = '''
SOURCE = r"""
extern "C" void f(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = (x[i] < 0 ? 0 : x[i]) * 2 + 1;
}
"""
'''
HEAD = f"import torch\nimport torch.nn as nn\nfrom kernelwright import native\n{SOURCE}\n\n"
FORWARD = """
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        self.lib.f(x, y, x.numel())
        return y
"""


def candidate(init: str, forward: str = FORWARD, top: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in ["super().__init__()", *init.split("\n")])
    return f"{HEAD}{top}class ModelNew(nn.Module):\n    def __init__(self):\n{lines}{forward}"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    s = Suite(new_cache(tmp_path_factory), KERNELS, ())
    yield s
    s.server.close()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in KERNELS]
)
def test_honest_passes(suite: Suite, name: str) -> None:
    known = {"calibration": suite.calibration("module_global", compiled=False)}
    request = suite.request(name, "quick", known=known, time=False)
    v = evaluate(suite.server, request)["verdict"]
    said = f"{v['status']}: {v['reason']} {v['evidence']} {v['build'].get('log', '')}"
    assert v["status"] == "correct", said
    assert v["metrics"]["custom_calls"] > 0, said
    assert not any(e.startswith("it ") for e in v["evidence"]), "it tried nothing: " + said
    assert v["reason"].startswith("agrees with float64") is (name not in FALLS_BACK), said


@pytest.mark.parametrize(
    "name,whole",
    [
        pytest.param("tunes_at_first_forward", False),
        *(
            pytest.param(n, True, marks=[pytest.mark.alone, pytest.mark.slow])
            for n in ("tunes_at_first_forward", "fifth_fallback_compiles")
        ),
    ],
)
def test_one_is_certified(suite: Suite, name: str, whole: bool) -> None:
    """The exported file asks for its objects, too, and compiles them by itself in the end."""
    known = {"calibration": suite.calibration("module_global", compiled=False)}
    more = {"known": known, "want_baselines": ["eager"], "certify_s": 1.0, "time": whole}
    v = evaluate(suite.server, suite.request(name, "certify", **more))["verdict"]
    assert v["status"] == "certified", f"{v['status']}: {v['reason']} {v['evidence']}"


CASES = [
    p.stem for p in sorted(FORMS.glob("*.py")) if not p.stem.startswith(("ref", "cuda", "two_"))
]


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_correct(evaluator: Evaluator, name: str) -> None:
    v = evaluator.verdict(TASK, (FORMS / f"{name}.py").read_text(), built=True)
    assert v["status"] == "correct", f"{v['reason']} {v['build'].get('log')}"
    assert v["reason"].startswith("agrees")


@pytest.mark.slow  # two objects with PyTorch's headers
def test_two_extensions_of_one_name_are_told_apart(evaluator: Evaluator) -> None:
    task = (FORMS / "ref_of_two_extensions.py").read_text()
    v = evaluator.verdict(task, (FORMS / "two_extensions_of_one_name.py").read_text(), built=True)
    assert v["status"] == "correct", v["reason"]


@pytest.mark.skipif(not toolchain.nvcc(), reason="there is no nvcc here")
@pytest.mark.slow
def test_flags_of_another_device_are_taken(evaluator: Evaluator) -> None:
    text = (FORMS / "cuda_flags_of_another_device.py").read_text()
    built = builder_client.build(
        evaluator.server, Candidate(text), evaluator.cache, "cuda:0", arch="sm_90a"
    )
    assert built.status == "", f"{built.reason} {built.build.log}"
    notes = " ".join(built.build.flags)
    assert "compiled for sm_90a" in notes and "asks for a report" in notes


def test_a_name_is_an_alias(evaluator: Evaluator) -> None:
    """Two processes ask for objects of two names, and there is one."""
    text = (HERE / "honest" / "extensions" / "name_of_the_process.py").read_text()
    task, own = text.split("# The candidate.\n")
    head, model = task.split("class Model(", 1)
    reference = head.replace("from kernelwright import native\n", "") + f"class Model({model}"
    v = evaluator.verdict(reference, head + own, built=True)
    assert v["status"] == "correct", v["reason"]
    assert not any("after its first forward" in e for e in v["evidence"])


BROKEN = 'self.lib = native(source="int a = ;" + SOURCE)'
FALLBACK = f"""try:
    {BROKEN}
except RuntimeError as e:
    self.lib = native(source=SOURCE)"""


def test_a_build_that_fails_inside_a_try_is_told_first(evaluator: Evaluator) -> None:
    v = evaluator.verdict(TASK, candidate(FALLBACK), built=True)
    assert v["status"] == "correct", v["reason"]
    assert v["reason"].startswith("native does not compile: ") and "agrees with" in v["reason"]
    assert v["evidence"][0].startswith("not built: native does not compile: ")
    assert "expected primary-expression" in v["evidence"][0]
    assert v["build"]["errors"] and "int a = ;" in v["build"]["log"]


def test_it_is_judged_as_what_runs(evaluator: Evaluator) -> None:
    text = candidate(
        f"try:\n    {BROKEN}\nexcept Exception:\n    self.lib = None",
        "\n    def forward(self, x):\n        return torch.relu(x) * 2 + 1\n",
    )
    v = evaluator.verdict(TASK, text, built=True)
    assert v["status"] == "rejected" and v["reason"].startswith("native does not compile"), v
    assert "no custom code" in v["reason"]
    v = evaluator.verdict(TASK, text, custom_code="any", require_custom=None, built=True)
    assert v["status"] == "correct" and v["reason"].startswith("native does not compile"), v


@pytest.mark.parametrize("where", ["top", "constructor", "forward"])
def test_one_that_nobody_catches_is_a_failed_build(evaluator: Evaluator, where: str) -> None:
    text = {
        "top": candidate("self.lib = lib", top='lib = native(source="int a = ;" + SOURCE)\n\n\n'),
        "constructor": candidate(BROKEN),
        "forward": candidate("pass", f"\n    def forward(self, x):\n        {BROKEN}\n"),
    }[where]
    v = evaluator.verdict(TASK, text, built=True)
    assert v["status"] == "build_failed", v["reason"]
    assert v["reason"].startswith("native does not compile: "), v["reason"]


def test_what_a_fallback_raises_comes_after_what_did_not_compile(evaluator: Evaluator) -> None:
    text = candidate(f"try:\n    {BROKEN}\nexcept Exception:\n    raise KeyError('no kernel')")
    v = evaluator.verdict(TASK, text, built=True)
    assert v["status"] == "crashed"
    assert v["reason"].startswith("native does not compile") and "KeyError" in v["reason"]


@pytest.mark.alone
def test_what_is_asked_for_later_is_built_once(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that come later are given what the first one has asked for."""
    compiled: list[str] = []
    real = build_process._compile

    def counted(worker: Any, cache: str, request: Any, *more: Any) -> Any:
        compiled.append(request["source"])
        return real(worker, cache, request, *more)

    monkeypatch.setattr(build_process, "_compile", counted)
    init = 'self.lib = native(source=SOURCE + "// once")'
    v = evaluator.verdict(TASK, candidate(init), built=True, time=True, want_baselines=["eager"])
    assert v["status"] == "correct", v["reason"]
    assert len(compiled) == 1
    assert v["build"]["seconds"] > 0 and v["build"]["vectorised"]
    assert not any("after its first forward" in e for e in v["evidence"])


def test_any_policy_judges_a_rewrite(evaluator: Evaluator) -> None:
    text = "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n"
    text += "    def forward(self, x):\n        return torch.jit.script(scaled)(x)\n\n\n"
    text += "def scaled(x):\n    return torch.clamp(x, min=0) * 2 + 1\n"
    more: dict[str, Any] = {"known": evaluator.calibration(TASK), "time": False}
    for policy, status in (("any", "correct"), ("required", "rejected")):
        request = evaluator.request(TASK, text, "quick", {**more, "custom_code": policy})
        v = evaluator.ask("evaluate", request)["verdict"]
        assert v["status"] == status, v["reason"]
    assert "torch.jit.script is not allowed" in v["reason"]
