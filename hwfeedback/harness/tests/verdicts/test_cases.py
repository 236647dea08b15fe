"""Small kernels of real-world kinds, each with the verdict that a user would expect of it.

A folder of ``cases`` holds references and candidates for them. What a correct one takes for granted
its verdict tells, and strict inputs refuse it for that.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from evaluating import Evaluator

CASES = pathlib.Path(__file__).parents[1] / "cases"
KEEPS_OBJECTS = True
LEVELS = ("quick", "certify")


def text(name: str) -> str:
    return (CASES / f"{name}.py").read_text()


# Candidate, its reference, whether it is right, and words of each sentence that must be told of it:
# of what a right one takes for granted, and why another one is wrong.
EXPECTED = [
    ("structure/right_diag", "structure/ref_diag", True, []),
    (
        "structure/right_triangular",
        "structure/ref_triangular",
        True,
        ["a is lower triangular", "b is lower triangular"],
    ),
    ("structure/right_causal", "structure/ref_causal", True, ["takes buffer mask for granted"]),
    ("structure/right_searchsorted", "structure/ref_searchsorted", True, ["bounds is sorted"]),
    ("order/right", "order/ref", True, []),
    ("order/wrong_six_a_part", "order/ref", False, []),
    ("buffers/right", "buffers/ref", True, []),
    ("buffers/zeros_baked_in", "buffers/ref", True, ["takes buffer zeros for granted"]),
    (
        "assumed/scalars_baked_in",
        "assumed/ref_scalars",
        True,
        ["takes scale = 0.5 for", "takes shift = 1 for", "takes clip = False for"],
    ),
    ("assumed/ids_baked_in", "assumed/ref_ids", True, ["takes ids for granted"]),
    ("assumed/relu_drops_nan", "assumed/ref_relu", True, ["no input is NaN"]),
    ("weights/right_other_names", "weights/ref", True, []),
    ("weights/right_fused_at_construction", "weights/ref", True, []),
    ("weights/wrong_fused_without_statistics", "weights/ref", False, []),
    ("weights/right_two_extensions_of_one_name", "weights/ref", True, []),
    ("weights/right_tied_kept_twice", "weights/ref_tied", True, []),
    ("state/right_ema", "state/ref_ema", True, []),
    ("state/wrong_ema_no_state", "state/ref_ema", False, []),
    ("state/right_cache", "state/ref_cache", True, []),
    ("state/wrong_cache_ignored", "state/ref_cache", False, []),
    ("rounding/right", "rounding/ref", True, []),
    ("rounding/right_reciprocal", "rounding/ref", True, []),
    ("rounding/wrong_biased", "rounding/ref", False, []),
    ("rounding/wrong_truncates", "rounding/ref", False, []),
]
# Why each wrong one is.
WRONG = {
    "order/wrong_six_a_part": "family ordered",
    "weights/wrong_fused_without_statistics": "on the reference's own draws",
    "state/wrong_ema_no_state": "on the reference's own draws",
    "state/wrong_cache_ignored": "on the reference's own draws",
    "rounding/wrong_biased": "elements differ",
    "rounding/wrong_truncates": "elements differ",
}


def is_right(v: dict[str, Any], level: str, told: list[str]) -> None:
    """Asserts that a verdict calls a candidate right, and tells what it takes for granted."""
    assert v["status"] == ("certified" if level == "certify" else "correct"), v["reason"]
    assert len(v["assumes"]) == len(told), v["assumes"]
    for sentence, words in zip(v["assumes"], told, strict=True):
        assert words in sentence, v["assumes"]


def had_two_right_values(v: dict[str, Any]) -> None:
    """Asserts that a verdict says of how few elements another value than float64's was right."""
    (said,) = [e for e in v["evidence"] if "had two right values" in e]
    count, _, of = said.split(" ")[:3]
    assert 0 < int(count) < 1e-4 * int(of), said
    rows = [f for f in v["correctness"]["families"] if f["name"] == "boundaries"]
    assert rows or v["level"] == "quick"
    assert all(row["gates"] and row["passed"] for row in rows)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "candidate, reference, right, told", EXPECTED, ids=[name for name, *_ in EXPECTED]
)
def test_a_case_gets_the_verdict_that_a_user_expects(
    evaluator: Evaluator, candidate: str, reference: str, right: bool, told: list[str], level: str
) -> None:
    v = evaluator.verdict(text(reference), text(candidate), level, built=True)
    if not right:
        assert v["status"] == "wrong" and WRONG[candidate] in v["reason"], v["reason"]
        return
    is_right(v, level, told)
    strict = evaluator.verdict(
        text(reference), text(candidate), level, built=True, strict_inputs=True
    )
    assert strict["status"] == ("wrong" if told else v["status"]), strict["reason"]
    assert not told or told[0] in strict["reason"] or "NaN" in strict["reason"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_reciprocal_lands_on_the_other_side_and_it_is_said(
    evaluator: Evaluator, level: str
) -> None:
    v = evaluator.verdict(
        text("rounding/ref"), text("rounding/right_reciprocal"), level, built=True
    )
    had_two_right_values(v)
