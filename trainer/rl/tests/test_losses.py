"""The maths by known values, worked out by hand, and by what must always hold."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from rl import losses
from rl.losses import Clip

CLIP = Clip(0.2, 0.28, 3.0)
NAN = math.nan


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def on(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.2, 1.0, -1.2),  # within the clip
        (1.5, 1.0, -1.28),  # clipped high
        (0.5, 1.0, -0.5),  # a gain that is lost is not clipped
        (0.5, -1.0, 0.8),  # clipped low
        (2.0, -1.0, 2.0),  # a loss that grows is not clipped
        (5.0, -1.0, 3.0),  # but by the dual clip
        (5.0, -2.0, 6.0),
    ],
)
def test_policy_loss_of_one_token(ratio: float, advantage: float, loss: float) -> None:
    got = losses.policy_loss(t(math.log(ratio)), t(0), t(advantage), on(1), CLIP, 1)
    assert float(got) == pytest.approx(loss)


def test_policy_loss_is_divided_by_the_tokens_of_the_whole_batch() -> None:
    zero = t(0, 0)
    whole = losses.policy_loss(zero, zero, t(1, 3), on(2), CLIP, 8)
    assert float(whole) == pytest.approx(-4 / 8)
    weighed = losses.policy_loss(zero, zero, t(1, 3), on(2), CLIP, 8, t(2, 0.5))
    assert float(weighed) == pytest.approx(-(2 + 1.5) / 8)


def test_gradient_stops_where_a_clip_binds() -> None:
    new = t(math.log(1.5), math.log(0.5), math.log(5), math.log(1.1)).requires_grad_()
    losses.policy_loss(new, torch.zeros(4), t(1, -1, -1, 1), on(4), CLIP, 1).backward()
    assert new.grad is not None
    assert new.grad[:3].tolist() == [0, 0, 0]
    assert float(new.grad[3]) == pytest.approx(-1.1)


def test_value_loss() -> None:
    # 0.5 * mean of (2-1)^2 and the larger of (3-0)^2, (0.5-0)^2
    got = losses.value_loss(t(2, 3), t(2, 0), t(1, 0), on(2), 0.5, 2)
    assert float(got) == pytest.approx(0.5 * (1 + 9) / 2)
    # Held, the value is 0.5 and its error (0.5-3)^2, although it is right by itself.
    got = losses.value_loss(t(3), t(0), t(3), on(1), 0.5, 1)
    assert float(got) == pytest.approx(0.5 * 6.25)
    assert float(losses.value_loss(t(3), t(0), t(3), on(1), 0, 1)) == 0


def test_entropy_and_kl() -> None:
    even, sure = (torch.log_softmax(t(*x), dim=-1) for x in ((0, 0, 0, 0), (1000, 0, 0)))
    assert float(losses.entropy_of(even)) == pytest.approx(math.log(4))
    assert float(losses.entropy_of(sure)) == pytest.approx(0, abs=1e-6)
    new, old = t(math.log(0.5)), t(math.log(0.25))
    assert float(losses.kl_k1(new, old, on(1))) == pytest.approx(-math.log(2))
    assert float(losses.kl_k3(new, old, on(1))) == pytest.approx(2 - 1 - math.log(2))


def test_kl_estimators_have_the_true_mean() -> None:
    p, q = t(0.5, 0.3, 0.2), t(0.2, 0.2, 0.6)
    true = float((p * (p / q).log()).sum())
    for estimate in (losses.kl_k1, losses.kl_k3):
        assert float((p * estimate(q.log(), p.log(), on(3))).sum()) == pytest.approx(true)


def test_the_log_ratio_is_cut() -> None:
    huge = losses.log_ratio(t(0, -2000), t(-1000, 0), on(2))
    assert huge.tolist() == [20, -20]


def test_importance_weights_are_capped() -> None:
    got = losses.importance_weights(
        t(math.log(3), math.log(0.5), NAN), t(0, 0, NAN), t(1, 1, 0) > 0, 2
    )
    assert got.tolist() == pytest.approx([2, 0.5, 1])


def test_nearly_impossible_tokens() -> None:
    old = t(math.log(0.9e-4), math.log(0.9e-4), math.log(1.1e-4), math.log(0.9e-4))
    got = losses.impossible(old, t(-1, 1, -1, -1), torch.tensor([True, True, True, False]), 1e-4)
    assert got.tolist() == [True, False, False, False]
    assert not losses.impossible(old, t(-1, -1, -1, -1), on(4), 0).any()


def test_gae_by_hand() -> None:
    # delta: 0 + .9*2 - 1 = .8; 0 + .9*3 - 2 = .7; 5 - 3 = 2
    got = losses.gae(t(0, 0, 5), t(1, 2, 3), on(3), 0.9, 0.5)
    assert got.tolist() == pytest.approx([0.8 + 0.45 * (0.7 + 0.45 * 2), 0.7 + 0.45 * 2, 2])


def test_gae_goes_on_with_the_value_after_a_limit() -> None:
    got = losses.gae(t(0, 0), t(1, 2), on(2), 1, 1, last=7)
    assert got.tolist() == pytest.approx([6, 5])


def test_gamma_and_lambda_1_telescope() -> None:
    values = torch.randn(50, dtype=torch.float64)
    rewards = torch.randn(50, dtype=torch.float64)
    got = losses.gae(rewards, values, on(50), 1, 1)
    to_go = rewards.flip(0).cumsum(0).flip(0)
    assert torch.allclose(got, to_go - values)


def test_lambda_by_length() -> None:
    assert losses.policy_lambda(1000, 0.05) == pytest.approx(0.98)
    assert losses.policy_lambda(40, 0.05) == pytest.approx(0.5)
    assert losses.policy_lambda(20, 0.05) == 0
    assert losses.policy_lambda(3, 0.05) == 0
    assert losses.policy_lambda(0, 0.05) == 0


def test_leave_one_out() -> None:
    assert losses.leave_one_out([1, 2, 3, 10], ["a", "a", "a", "b"]) == pytest.approx(
        [-1.5, 0, 1.5, 0]
    )
    # Two turns of one episode in a group are no baseline of each other.
    assert losses.leave_one_out([1, 2, 4], ["a", "a", "a"], [0, 0, 1]) == pytest.approx(
        [-3, -2, 2.5]
    )


def test_whitening() -> None:
    got = losses.whiten(t(1, 3, NAN, 5), torch.tensor([True, True, False, True]))
    deviation = math.sqrt(8 / 3)
    assert got.tolist() == pytest.approx([-2 / deviation, 0, 0, 2 / deviation])
    assert losses.whiten(t(2, 2), on(2)).tolist() == [0, 0]


def test_explained_variance() -> None:
    returns = t(1, 2, 3, NAN)
    mask = torch.tensor([True, True, True, False])
    assert losses.explained_variance(returns, returns, mask) == pytest.approx(1)
    assert losses.explained_variance(t(2, 2, 2, 9), returns, mask) == pytest.approx(0)
    assert losses.explained_variance(t(3, 2, 1, 9), returns, mask) == pytest.approx(1 - 4)
    assert losses.explained_variance(t(1, 1), t(2, 2), on(2)) == 0


def test_policy_metrics() -> None:
    ratio = t(1.5, 0.5, 4.0, 1.0)
    got = losses.policy_metrics(ratio.log(), torch.zeros(4), t(1, -1, -1, 1), on(4), CLIP)
    assert got["clip_high"] == got["clip_low"] == got["clip_dual"] == 0.25
    assert got["ratio_mean"] == pytest.approx(7 / 4)
    assert got["ratio_max"] == pytest.approx(4)
    assert got["ratio_p99"] == pytest.approx(1.5 + 0.97 * 2.5)
    assert got["kl_k1"] == pytest.approx(-float(ratio.log().mean()))


def draw(rng: random.Random, n: int) -> dict[str, torch.Tensor]:
    return {
        "new": t(*(rng.gauss(-2, 2) for _ in range(n))),
        "old": t(*(rng.gauss(-2, 2) for _ in range(n))),
        "values": t(*(rng.gauss(0, 1) for _ in range(n))),
        "rewards": t(*(rng.choice([-1, 0, 1, 3]) for _ in range(n))),
    }


def everything(d: dict[str, torch.Tensor], mask: torch.Tensor) -> dict[str, Any]:
    """All that training makes of one episode; advantages of the policy's tokens alone."""
    new, values = d["new"].clone().requires_grad_(), d["values"].clone().requires_grad_()
    tokens = float(mask.sum())
    lam = losses.policy_lambda(int(tokens), 0.3)
    advantages = losses.gae(d["rewards"], d["values"], mask, 0.99, lam, last=0.5)
    returns = losses.gae(d["rewards"], d["values"], mask, 1, 1) + d["values"]
    white = losses.whiten(advantages, mask)
    hidden = losses.impossible(d["old"], white, mask, 0.05)
    weights = losses.importance_weights(d["old"], d["new"], mask, 2)
    policy = losses.policy_loss(new, d["old"], white, mask & ~hidden, CLIP, tokens, weights)
    value = losses.value_loss(values, d["values"] + 0.3, returns, mask, 0.5, tokens)
    kl = losses.masked_mean(losses.kl_k3(new, d["old"], mask), mask, tokens)
    (policy + value + kl).backward()
    assert new.grad is not None and values.grad is not None
    metrics = losses.policy_metrics(new.detach(), d["old"], white, mask, CLIP)
    return {
        "advantages": white[mask],
        "raw": advantages[mask],
        "gradient": new.grad[mask],
        "value gradient": values.grad[mask],
        "elsewhere": torch.stack([new.grad[~mask].abs().sum(), values.grad[~mask].abs().sum()]),
        "losses": torch.stack([policy, value, kl]).detach(),
        "explained": t(losses.explained_variance(d["values"], returns, mask)),
        "metrics": t(*metrics.values()),
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name, x in a.items():
        assert torch.allclose(x, b[name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("junk", [0.0, 1e30, NAN, math.inf])
def test_inserted_tokens_of_the_environment_change_nothing(junk: float) -> None:
    rng = random.Random(3)
    for _ in range(50):
        n = rng.randint(1, 30)
        plain = draw(rng, n)
        expected = everything(plain, on(n))
        slots = [True] * n + [False] * rng.randint(1, 20)
        rng.shuffle(slots)
        mask = torch.tensor(slots)
        mixed = {}
        for name, x in plain.items():
            mixed[name] = torch.full(mask.shape, junk, dtype=torch.float64)
            mixed[name][mask] = x
        got = everything(mixed, mask)
        assert_same(expected, got)
        assert got["elsewhere"].tolist() == [0, 0]


def test_parts_of_a_batch_add_up_to_it() -> None:
    rng = random.Random(4)
    for _ in range(20):
        n = rng.randint(2, 40)
        d, cut = draw(rng, n), rng.randint(1, n - 1)
        args = (d["new"], d["old"], d["rewards"], on(n))
        whole = losses.policy_loss(*args, CLIP, n)
        parts = [
            losses.policy_loss(*(x[part] for x in args), CLIP, n)
            for part in (slice(cut), slice(cut, n))
        ]
        assert float(whole) == pytest.approx(float(sum(parts)))


def test_whitening_over_processes_is_that_of_the_whole() -> None:
    x = torch.randn(31, dtype=torch.float64) * 3 + 5
    mask = torch.rand(31) < 0.7
    parts = [(x[:9], mask[:9]), (x[9:], mask[9:])]
    sums: list[torch.Tensor] = []

    def first(y: torch.Tensor) -> torch.Tensor:
        sums.append(y)
        return y

    # What each process adds is known by running them one after the other, as a reduction would.
    def run(reduce: losses.Reduce) -> list[torch.Tensor]:
        return [losses.whiten(a, m, reduce) for a, m in parts]

    count_and_sum = [torch.stack([m.sum().double(), losses.keep(a, m).sum()]) for a, m in parts]
    mean = float(sum(s[1] for s in count_and_sum) / sum(s[0] for s in count_and_sum))
    squares = [losses.keep((a - mean).square(), m).sum() for a, m in parts]
    answers = [sum(count_and_sum), sum(squares)] * 2
    got = run(lambda _: answers.pop(0))  # type: ignore[arg-type,return-value]
    assert torch.allclose(torch.cat(got), losses.whiten(x, mask))


def test_an_empty_batch_has_no_loss_and_no_metrics() -> None:
    empty, none = t(NAN), torch.tensor([False])
    assert float(losses.policy_loss(empty, empty, empty, none, CLIP, 0)) == 0
    assert float(losses.value_loss(empty, empty, empty, none, 0.5, 0)) == 0
    assert losses.policy_metrics(empty, empty, empty, none, CLIP) == {}
    assert losses.gae(empty, empty, none, 1, 1).tolist() == [0]
    assert losses.explained_variance(empty, empty, none) == 0
    assert math.isnan(losses.quantile(t(), 0.5))
