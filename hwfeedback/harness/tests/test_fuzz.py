"""The fuzz targets for a moment each: their seeds, what once failed, and a second of mutations.

``make fuzz`` runs them for longer, by coverage.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

FUZZ = pathlib.Path(__file__).parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

import driver  # noqa: E402
import watched  # noqa: E402

SECONDS = 0.7
SEED = 1  # the same every day: what others find is for `make fuzz`


@pytest.mark.parametrize("name", driver.names())
def test_target(name: str) -> None:
    target = driver.load(name)
    driver.replay(name, target)
    assert driver.at_random(name, target, SECONDS, SEED) > 0


def test_every_target_is_watched() -> None:
    assert set(watched.MODULES) == set(driver.names())
    ours = {"kernelwright"} | driver._package()
    assert all(set(modules) <= ours for modules in watched.MODULES.values())


def test_the_driver_finds_what_fails() -> None:
    class Target:
        @staticmethod
        def seeds() -> list[bytes]:
            return [b'{"n": 1}']

        @staticmethod
        def one(data: bytes) -> None:
            assert b"1" in data

    with pytest.raises(driver.Found) as caught:
        driver.at_random("none", Target, 5, 1)
    assert b"1" not in caught.value.data
