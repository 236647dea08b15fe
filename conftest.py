"""How the Python tests are chosen."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

BEGAN = time.monotonic()
WEEKLY = Path(__file__).parent / ".ci" / "weekly.toml"
ROWS: list[dict[str, Any]] = tomllib.loads(WEEKLY.read_text())["weekly"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for", type=float, help="seconds, after which no further test begins")
    parser.addoption("--part", default="1/1", help="K/N: the K-th of N parts of all tests")


def weekly(item: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a test is one of those that run once a week. ``item``: its path, name and case; of a
    row a star stands for anything.
    """
    for row in rows:
        first, _, last = row["tests"].partition("*")
        if first in item and item.endswith(last):
            case = item.partition("[")[2].removesuffix("]")
            return case not in row.get("daily", [])
    return False


@pytest.hookimpl(tryfirst=True)  # before they are chosen by their marks
def pytest_itemcollected(item: pytest.Item) -> None:
    if weekly(item.nodeid, ROWS):
        item.add_marker(pytest.mark.weekly)


@pytest.hookimpl(trylast=True)  # of those that are not left out for another reason
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, of = map(int, config.getoption("--part").split("/"))
    config.hook.pytest_deselected(items=[i for k, i in enumerate(items) if k % of != part - 1])
    items[:] = items[part - 1 :: of]


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--for")
    if limit is not None and time.monotonic() - BEGAN > limit:
        pytest.skip("no time is left: make test runs it")
