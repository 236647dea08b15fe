"""What is compiled by calling a program: kernels in languages that compile then, and what
torch.compile makes of it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from kwharness.base.built import Artifact, Failed
from kwharness.base.configs import BuilderConfig
from kwharness.build import object_cache
from kwharness.clients.candidate_client import CandidateClient
from kwharness.machine import toolchain
from kwharness.referee import faults
from kwharness.referee.context import Context
from kwharness.referee.program import Program
from kwharness.referee.trial import CALLED_S, Trial


@contextmanager
def kept(context: Context) -> Iterator[None]:
    """What is compiled by calling it is kept in the cache; for an explanation, in a folder that
    goes with it.
    """
    if not context.rules.explain:
        yield
        return
    with tempfile.TemporaryDirectory(dir=context.called_in, prefix=".explained-") as folder:
        context.called_in = folder
        yield


def add_kernels(trial: Trial, program: Program) -> None:
    """Adds what is compiled by calling it to what was built: by a forward where programs may be
    started.
    """
    context = trial.context
    key = key_of(context, program)
    found = object_cache.kept_kernels(context.called_in, key)
    found = found or _compiled_kernels(trial, program, key)
    if found is not None:
        program.built.artifacts.append(found)


def key_of(context: Context, program: Program) -> str:
    """Names what is compiled by calling a program: for so many threads, tuned on the GPU that is
    there, by what policy lets compile.
    """
    rules, place = context.rules, context.request.workplace
    where = (toolchain.identity(), str(place.placed()), str(place.threads))
    custom = "custom" if rules.requires_custom else "any"
    how = (str(context.eval_mode), rules.precision, custom)
    text = (program.source, context.task.source)
    return toolchain.key("called", object_cache.RULES, *text, *where, *how)


def that_compiles(trial: Trial, program: Program) -> CandidateClient:
    """Starts a process of a program that may start compilers. No output of it decides anything."""
    context = trial.context
    with context.costs.part("worker"):
        config = replace(context.candidate_config(BuilderConfig), runs=True)
        worker = context.server.spawn(config, limits=context.limits())
    client = CandidateClient(worker, CALLED_S, context.device)
    try:
        trial.load(client, program=program)
    except BaseException:
        client.kill()
        raise
    return client


def _compiled_kernels(trial: Trial, program: Program, key: str) -> Artifact | None:
    client = that_compiles(trial, program)
    try:
        # A draw that nothing else is judged by: what is compiled goes to the timed workers.
        tree, inputs = trial.reference.draw(secrets.randbits(62))
        oracle = trial.verification.oracle
        like = (oracle.outputs, oracle.output_tree, oracle.aliases)
        with faults.faults("compiling what it calls", client):
            client.begin_forward(tree, inputs, *like)
            client.finish_forward()
            fd, libraries = client.compiled()
        if fd < 0:
            return None
        try:
            return object_cache.keep_kernels(trial.context.called_in, key, fd, libraries)
        except Failed as e:
            raise faults.Fault(e.status, f"compiling what it calls: {e}") from e
        finally:
            for opened in (fd, *libraries.values()):
                os.close(opened)
    finally:
        client.kill()
        client.worker.wait(10)
