"""What the tests of verdicts share."""

from __future__ import annotations

import gc
import pathlib
import sys
from collections.abc import Iterator

import pytest
from evaluating import Evaluator, end_fork_servers, fork_server, keep_compiled, new_cache

from kwharness.process.fork_client import ForkServer

# A test may use what another one's file has, in whichever folder that is.
sys.path += sorted(map(str, pathlib.Path(__file__).parent.glob("*/")))


@pytest.fixture(scope="session", autouse=True)
def _fork_servers() -> Iterator[None]:
    # As the fork server does before a referee comes of it: each verdict collects garbage, and would
    # look through all that was imported.
    gc.collect()
    gc.freeze()
    yield
    end_fork_servers()
    keep_compiled()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A connection to the session's fork server: what is spawned over it ends with the module."""
    client = fork_server()
    yield client
    client.close()


@pytest.fixture(scope="module")
def evaluator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Evaluator]:
    """A referee on the CPU, with a cache of its own; where its module says KEEPS_OBJECTS, with what
    was compiled before.
    """
    keeps = getattr(request.module, "KEEPS_OBJECTS", False)
    j = Evaluator(new_cache(tmp_path_factory, objects=keeps))
    yield j
    j.close()
