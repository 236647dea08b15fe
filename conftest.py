"""How the Python tests are chosen, and what one says that others have disturbed."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "hwfeedback" / "harness" / "tests"))

import machine

WATCH = pytest.StashKey[machine.Watch]()
BEGAN = time.monotonic()
WEEKLY = Path(__file__).parent / ".ci" / "weekly.toml"
ROWS: list[dict[str, Any]] = tomllib.loads(WEEKLY.read_text())["weekly"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for", type=float, help="seconds, after which no further test begins")
    parser.addoption("--part", default="1/1", help="K/N: the K-th of N parts of all tests")


def pytest_configure() -> None:
    os.environ.setdefault(machine.RUN, str(os.getpid()))  # those of xdist are its children


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if item.get_closest_marker("alone"):
        item.stash[WATCH] = machine.Watch()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed because others were at work was not measured, and is nobody's fault."""
    report = yield
    watch = item.stash.get(WATCH, None)
    if call.when != "call" or watch is None or not report.failed or call.excinfo is None:
        return report
    share = watch.others()
    if share > machine.BUSY and not call.excinfo.errisinstance(machine.Regardless):
        path, line, _ = item.location
        report.outcome = "skipped"
        first = call.excinfo.exconly().partition("\n")[0]
        report.longrepr = (path, (line or 0) + 1, machine.says(share, first))
    return report
