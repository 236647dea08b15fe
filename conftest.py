"""How the Python tests are chosen."""

from __future__ import annotations

import os
import time
import tomllib
import zlib
from pathlib import Path
from typing import Any

import pytest

BEGAN = time.monotonic()
DAY = "KERNELWRIGHT_TEST_DAY"  # since 1970: which cases have their turn
Rows = list[dict[str, Any]]


def _rows(name: str) -> Rows:
    text = (Path(__file__).parent / ".ci" / f"{name}.toml").read_text()
    rows: Rows = tomllib.loads(text)[name]
    return rows


WEEKLY, TURNS = _rows("weekly"), _rows("turns")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for", type=float, help="seconds, after which no further test begins")
    parser.addoption("--part", default="1/1", help="K/N: the K-th of N parts of all tests")


def pytest_configure(config: pytest.Config) -> None:
    # One day for all processes of a run, which may go on past midnight.
    os.environ.setdefault(DAY, str(int(time.time()) // 86_400))


def listed(item: str, rows: Rows) -> dict[str, Any] | None:
    """Returns the row of a test. ``item``: its path, name and case; of a row a star stands for
    anything, and what it has every day is in none.
    """
    for row in rows:
        first, _, last = row["tests"].partition("*")
        if first in item and item.endswith(last):
            case = item.partition("[")[2].removesuffix("]")
            return None if case in row.get("daily", []) else row
    return None


def turn(item: str, days: int) -> int:
    """Returns on which of so many days a test has its turn: by its name, wherever its file is."""
    return zlib.crc32(item.partition("::")[2].encode()) % days


@pytest.hookimpl(tryfirst=True)  # before they are chosen by their marks
def pytest_itemcollected(item: pytest.Item) -> None:
    if listed(item.nodeid, WEEKLY):
        item.add_marker(pytest.mark.weekly)
        return
    row = listed(item.nodeid, TURNS)
    if row and turn(item.nodeid, row["days"]) != int(os.environ[DAY]) % row["days"]:
        item.add_marker(pytest.mark.later)


@pytest.hookimpl(trylast=True)  # of those that are not left out for another reason
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, of = map(int, config.getoption("--part").split("/"))
    config.hook.pytest_deselected(items=[i for k, i in enumerate(items) if k % of != part - 1])
    items[:] = items[part - 1 :: of]


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--for")
    if limit is not None and time.monotonic() - BEGAN > limit:
        pytest.skip("no time is left: make test runs it")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    day = os.environ[DAY]
    said = f"cases that take turns: those of day {day} ({DAY}={day}); -m '' runs all"
    terminalreporter.write_line(said)
