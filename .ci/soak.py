#!/usr/bin/env python3
"""Runs what takes too long for every day: the pieces of soak.toml.

    .ci/soak.py                  all of them, one after the other (make soak)
    .ci/soak.py --today          those of this day's share (CI): all come round in turn
    .ci/soak.py --only NAME      one
    .ci/soak.py --list           which there are, and where each is run

It is called by make, which says where Python and the compilers are. A piece that is longer than a
share is run by make soak alone. What a share has no time for is told, and is no failure.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime

HERE = pathlib.Path(__file__).parent
# Of the pieces of one day, by what they are known to take: the weekly round's, and the long one's,
# which take turns from day to day.
SHARE_S = {True: 300.0, False: 180.0}
PATIENCE = 4  # times what a piece is known to take, before it counts as one that hangs


@dataclass(frozen=True)
class Piece:
    """One command. ``minutes`` is about what it takes on two cores. ``weekly`` is what make test
    once ran: it has a round of its own, which is a short one.
    """

    name: str
    what: str
    run: str
    minutes: float
    parts: int = 1
    weekly: bool = False

    @property
    def seconds(self) -> float:
        return 60 * self.minutes


def listed(path: pathlib.Path = HERE / "soak.toml") -> list[Piece]:
    """Reads the list."""
    return [Piece(**row) for row in tomllib.loads(path.read_text())["piece"]]


def pieces(of: list[Piece] | None = None) -> list[Piece]:
    """Returns what has several parts as so many pieces, whose command knows its PART."""
    found = []
    for piece in listed() if of is None else of:
        for k in range(1, piece.parts + 1):
            part = f"{k}/{piece.parts}"
            name = piece.name if piece.parts == 1 else f"{piece.name} {part}"
            run = f"PART={part}; {piece.run}"
            minutes = piece.minutes / piece.parts
            found.append(replace(piece, name=name, run=run, minutes=minutes, parts=1))
    return found


def rounds(of: list[Piece]) -> list[list[list[Piece]]]:
    """Deals out what fits into a share, in two rounds of shares: the longest first, each to the
    first share that has room.
    """
    found = []
    for weekly in (True, False):
        dealt: list[list[Piece]] = []
        for piece in sorted(of, key=lambda p: (-p.minutes, p.name)):
            most = SHARE_S[weekly]
            if piece.seconds > most or piece.weekly != weekly:
                continue
            room = (s for s in dealt if sum(p.seconds for p in s) + piece.seconds <= most)
            share = next(room, None)
            if share is None:
                dealt.append([piece])
            else:
                share.append(piece)
        found.append(dealt)
    return found


def today(of: list[list[list[Piece]]], now: datetime) -> list[Piece]:
    """Returns the share of a day, with another first piece each time that it comes round. The
    rounds take turns.
    """
    there = list(filter(None, of))
    day, k = divmod(now.toordinal(), len(there))
    turn, which = divmod(day, len(there[k]))
    share = there[k][which]
    first = turn % len(share)
    return share[first:] + share[:first]


def table(of: list[Piece]) -> str:
    """Returns the list as Markdown."""
    dealt = list(filter(None, rounds(pieces(of))))
    every = {p.name: len(dealt) * len(d) for d in dealt for share in d for p in share}
    rows = [
        "| piece | what it holds | minutes | parts | CI runs it |",
        "|---|---|---|---|---|",
    ]
    for p in of:
        days = every.get(pieces([p])[0].name)
        when = f"every {days} days" if days else "no: `make soak` alone"
        rows.append(f"| {p.name} | {p.what} | {p.minutes:.0f} | {p.parts} | {when} |")
    return "\n".join(rows)


def run(piece: Piece) -> bool:
    """Runs a piece and everything that it starts. Returns whether it is good."""
    print(f"\n== soak: {piece.name} ({piece.what}), about {piece.minutes:.1f} min", flush=True)
    start = time.monotonic()
    command = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", piece.run],
        cwd=HERE.parent,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = command.wait(PATIENCE * piece.seconds + 120)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    took = time.monotonic() - start
    said = {0: "good", -1: "does not end"}.get(code, f"exit code {code}")
    print(f"== soak: {piece.name}: {said}, {took:.0f} s", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--today", action="store_true", help="this day's share")
    parser.add_argument("--only", action="append", default=[], help="the name of a piece")
    parser.add_argument("--list", action="store_true", help="print the list")
    args = parser.parse_args()
    if args.list:
        print(table(listed()))
        return 0
    share = pieces()
    if args.today:
        share = today(rounds(pieces()), datetime.now(UTC))
    if args.only:
        named = [p for p in pieces() if {p.name, p.name.split(" ")[0]} & set(args.only)]
        if not named:
            print(f"no piece is called {', '.join(args.only)}: --list names them", file=sys.stderr)
            return 2
        share = named
    failed: list[str] = []
    left: list[str] = []
    end = time.monotonic() + (SHARE_S[share[0].weekly] if args.today else float("inf"))
    for i, piece in enumerate(share):
        if i and time.monotonic() + piece.seconds / 2 > end:
            left.append(piece.name)
        elif not run(piece):
            failed.append(piece.name)
    if left:
        print(f"no time was left for: {', '.join(left)}")
    ran = len(share) - len(left)
    print(f"soak: {ran} pieces, {', '.join(failed) or 'none'} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
