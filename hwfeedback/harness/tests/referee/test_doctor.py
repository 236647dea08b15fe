"""What the examination of a machine tells the program that asked for it."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from kwharness.process.policy import SandboxError
from kwharness.referee import doctor


@pytest.mark.parametrize(("built", "told"), [("12.8", "12.8"), (None, "")])
def test_the_cuda_that_torch_was_built_for(
    monkeypatch: pytest.MonkeyPatch, built: str | None, told: str
) -> None:
    def none(*_: Any) -> None:
        raise SandboxError("no user namespaces")

    monkeypatch.setattr(torch.version, "cuda", built)
    report = doctor.report(types.SimpleNamespace(spawn=none), "strict")
    assert report.cuda == told
    checks = {c.name: c for c in report.checks}
    assert torch.__version__ in checks["torch"].note
    assert checks["sandbox"].note == "no user namespaces" and not checks["sandbox"].ok
