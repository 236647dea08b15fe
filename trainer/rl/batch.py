"""Rows for the model: samples joined where one continues the other, then padded or packed.

The policy's tokens of a batch are numbered through: by episode, call and place. All tensors of
losses are flat in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.trajectories import Episode


@dataclass
class Row:
    """One sequence: ``start`` ids of a prompt, then a response.

    ``mask``, ``sampler`` (log-probabilities) and ``calls`` are of the response's length. ``first``
    is the number of its first policy token in the batch.
    """

    ids: list[int]
    start: int
    mask: list[int]
    sampler: list[float]
    calls: list[int]
    episode: int = 0
    first: int = 0

    @property
    def count(self) -> int:
        """Tokens of the policy."""
        return sum(self.mask)


def rows_of(episode: Episode, number: int = 0, join: bool = True) -> list[Row]:
    """Returns the rows of an episode in the order of calls. With ``join`` a call whose prompt
    continues the row before, token by token, is written behind it: what lies between is the
    environment's.
    """
    rows: list[Row] = []
    for s in episode.samples:
        mask = [int(bool(m)) for m in s.response_mask]
        calls = [s.call] * len(mask)
        last = rows[-1] if rows else None
        if join and last is not None and s.prompt_ids[: len(last.ids)] == last.ids:
            between = s.prompt_ids[len(last.ids) :]
            last.ids = s.prompt_ids + s.response_ids
            last.mask += [0] * len(between) + mask
            last.sampler += [0.0] * len(between) + list(s.rollout_logprobs)
            last.calls += [s.call] * len(between) + calls
        else:
            ids = s.prompt_ids + s.response_ids
            rows.append(Row(ids, len(s.prompt_ids), mask, list(s.rollout_logprobs), calls, number))
    return [row for row in rows if row.count]


def number(rows: Sequence[Row]) -> int:
    """Numbers the policy's tokens through, and returns how many there are."""
    total = 0
    for row in rows:
        row.first = total
        total += row.count
    return total


@dataclass
class Batch:
    """What goes through a model at once, on its device.

    ``input_ids`` and ``position_ids`` are [rows, length]. Padding is on the right, where nothing
    sees it: there is no mask but the causal one, for which kernels are fast. Rows that are packed
    begin anew with their places, by which models tell them apart. ``at`` is [2, n]: row and column
    of what predicts each of the n policy tokens; ``targets`` [n] are those tokens, ``tokens`` [n]
    their numbers in the whole batch. ``ends`` is [2, rows]: where each row's last token stands.
    """

    input_ids: Tensor
    position_ids: Tensor
    at: Tensor
    targets: Tensor
    tokens: Tensor
    ends: Tensor


def collate(rows: Sequence[Row], device: torch.device, packed: bool = False) -> Batch:
    """Returns rows as one batch: padded on the right, or behind each other in one line."""
    longest = sum(len(r.ids) for r in rows) if packed else max(len(r.ids) for r in rows)
    lines = 1 if packed else len(rows)
    ids = torch.zeros((lines, longest), dtype=torch.long)
    places = torch.arange(longest).repeat(lines, 1)
    at, targets, tokens, ends = [], [], [], []
    begin = 0
    for i, row in enumerate(rows):
        line, n = (0, len(row.ids)) if packed else (i, len(row.ids))
        begin = begin if packed else 0
        span = torch.tensor(row.ids)
        ids[line, begin : begin + n] = span
        places[line, begin : begin + n] = torch.arange(n)
        where = torch.tensor(row.mask).nonzero().flatten() + row.start
        at.append(torch.stack([torch.full_like(where, line), where - 1 + begin]))
        targets.append(span[where])
        tokens.append(torch.arange(row.first, row.first + len(where)))
        ends.append([line, begin + n - 1])
        begin += n
    return Batch(
        ids.to(device),
        places.to(device),
        torch.cat(at, dim=1).to(device),
        torch.cat(targets).to(device),
        torch.cat(tokens),
        torch.tensor(ends).T.to(device),
    )


def micro_batches(rows: Sequence[Row], most: int, packed: bool = False) -> list[list[Row]]:
    """Returns rows in lots of at most ``most`` tokens, padding included; of like lengths together.
    The order depends on nothing but the rows.
    """
    out: list[list[Row]] = []
    total = longest = 0
    for row in sorted(rows, key=lambda r: (-len(r.ids), r.first)):
        n = len(row.ids)
        longest = max(longest, n)
        cost = total + n if packed else longest * (len(out[-1]) + 1 if out else 1)
        if not out or cost > most:
            out.append([])
            total, longest = 0, n
        out[-1].append(row)
        total += n
    return out
