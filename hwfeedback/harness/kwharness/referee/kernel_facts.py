"""What the objects of a candidate say of its kernels, read beside other work."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress

from kwharness.base.protocol import ProtocolError
from kwharness.base.verdicts import Kernel, Verdict
from kwharness.build import builder_client
from kwharness.process.policy import SandboxError
from kwharness.referee.context import Context
from kwharness.referee.program import Program


class KernelFacts:
    """It is read once, on a GPU. Nothing rests on it."""

    def __init__(self, context: Context, program: Program) -> None:
        self.context = context
        self.program = program
        self.told = False  # whether it is in the verdict
        self._read: Future[list[Kernel]] | None = None

    def begin(self) -> None:
        """Has the objects read: while the candidate is verified, or beside a profile, which waits
        for other things.
        """
        context = self.context
        if self.told or self._read is not None or not context.device.profiled:
            return
        if artifacts := self.program.artifacts():
            place = context.request.workplace
            self._read = context.beside.submit(
                builder_client.facts,
                context.server,
                artifacts,
                place.cache_dir,
                place.sandbox,
            )

    def add(self, v: Verdict) -> None:
        """Waits for what is known of its kernels: nobody reads while it is timed."""
        read, self._read = self._read, None
        if read is None:
            return
        self.told = True
        # A builder may fail, or an object be gone from the cache.
        with self.context.costs.part("facts"), suppress(OSError, SandboxError, ProtocolError):
            v.build.kernels = builder_client.with_facts(v.build.kernels or [], read.result())
