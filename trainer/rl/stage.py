"""What every stage's program shares: settings, lock, progress, signals, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
import transformers

from rl.constants import SHARED
from rl.errors import (
    Abandoned,
    BadInput,
    Interrupted,
    OutOfMemory,
    StageError,
    disk_error,
    no_room,
    out_of_memory,
    writing,
)
from rl.settings import Machine, read
from rl.workers import end_with_agent
from rl.world import World

METRICS = SHARED.metrics_file


class Stage:
    """One run of a stage's program: where it writes, what it tells, and whether it should stop."""

    def __init__(self, world: World, out: Path, say: Callable[[str], None]) -> None:
        self.world = world
        self.out = out
        self.stopping = False
        self._say = say
        self._tensorboard: Any = None
        self._began = time.monotonic()

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and tells."""
        return self.world.rank == 0

    def tell(self, event: str, **fields: Any) -> None:
        """Prints one line of JSON. Numbers that are not finite become null."""
        if self.first:
            line = {"event": event, "seconds": round(time.monotonic() - self._began, 3), **fields}
            self._say(json.dumps(finite(line)))

    def note(self, text: str) -> None:
        """Tells something that a person should know."""
        self.tell("note", text=text)

    def begin(self, step: int, tensorboard: bool) -> None:
        """Goes on after ``step``: what metrics were written of later steps is taken back."""
        if not self.first:
            return
        path, beside = self.out / METRICS, self.out / f".{METRICS}.new"
        if path.exists():
            lines = [x for x in path.read_text().splitlines(True) if _step_of(x) <= step]
            with writing(path):
                beside.write_text("".join(lines))
                beside.replace(path)
        if tensorboard:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                self.note("tensorboardX is not installed: no files for TensorBoard are written")
                return
            purge = step + 1 if step else None
            self._tensorboard = SummaryWriter(str(self.out / "tensorboard"), purge_step=purge)

    def step(self, step: int, steps: int, metrics: dict[str, Any]) -> None:
        """Tells a step that is done, and writes its metrics."""
        self.tell("step", step=step, steps=steps, metrics=metrics)
        if not self.first:
            return
        with writing(self.out / METRICS):
            with open(self.out / METRICS, "a") as f:
                f.write(json.dumps(finite({"step": step, **metrics})) + "\n")
            if self._tensorboard is not None:
                for name, value in metrics.items():
                    if isinstance(value, (int, float)) and math.isfinite(value):
                        self._tensorboard.add_scalar(name, value, step)
                self._tensorboard.flush()

    def asked_to_stop(self) -> bool:
        """Reports whether a process was asked to stop; all of them must ask."""
        return self.world.any(self.stopping)

    def interrupt(self, step: int) -> None:
        """Ends the stage after a step that was saved."""
        raise Interrupted(f"stopped on request after step {step}", "start it again to go on")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second trainer out of the folder."""
        if not self.first:
            yield
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = open(self.out / ".lock", "a+")  # noqa: SIM115 (the with is below)
        except OSError as error:
            raise disk_error(error, self.out) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise BadInput(
                    f"another trainer works in {self.out} (process {lock.read().strip() or '?'})",
                    "wait for it, stop it, or name another folder",
                ) from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # cut short by a kill


def finite(x: Any) -> Any:
    """Returns x with null for every number that JSON has none for."""
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(v) for v in x]
    return x


def main(kind: type[Any], run: Callable[[Any, Stage], dict[str, Any]]) -> int:
    """Runs a stage by the command line's settings and returns the exit code of rl's docstring."""
    end_with_agent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="a JSON file with the stage's settings")
    path = parser.parse_args().config
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stdout = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no progress

    def say(line: str) -> None:
        print(line, file=stdout, flush=True)

    try:
        settings = read(kind, path)
    except StageError as error:
        say(json.dumps(_fields(error)))
        return error.exit_code
    return run_stage(settings, run, say)


def run_stage(
    settings: Any, run: Callable[[Any, Stage], dict[str, Any]], say: Callable[[str], None]
) -> int:
    """Runs a stage and returns its exit code; ``say`` gets the lines of progress."""
    machine: Machine = getattr(settings, "machine", Machine())
    stage: Stage | None = None
    world: World | None = None
    try:
        if not settings.out:
            raise BadInput("out is empty", "name the folder that the stage writes to")
        if machine.threads:
            torch.set_num_threads(machine.threads)
        transformers.utils.logging.disable_progress_bar()
        seed = int(getattr(settings, "seed", 0))
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        world = World(machine)
        # To the same bits on a CPU; on a GPU it would cost too much.
        torch.use_deterministic_algorithms(world.device.type == "cpu", warn_only=True)
        stage = Stage(world, Path(settings.out), say)
        _listen(stage)
        world.watch(lambda: _leave(world, say))
        with stage.locked():
            stage.tell("end", **run(settings, stage))
        world.close()
        return 0
    except StageError as error:
        return _failed(error, stage, say)
    except Exception as error:
        if out_of_memory(error):
            short = OutOfMemory(
                f"out of memory: {str(error).splitlines()[0]}", "lower micro_tokens"
            )
            return _failed(short, stage, say)
        if isinstance(error, OSError) and no_room(error, Path(settings.out)):
            return _failed(disk_error(error, error.filename or settings.out), stage, say)
        traceback.print_exc(file=sys.stderr)
        if stage is not None and stage.world.left_by(error):
            return _failed(_abandoned(stage.world), stage, say)
        broken = StageError(f"{type(error).__name__}: {error}", "this is a fault of the program")
        return _failed(broken, stage, say)
    finally:
        if world is not None:
            world.lease.let_go()


def _abandoned(world: World) -> Abandoned:
    return Abandoned(
        f"another of the stage's {world.size} processes has ended, and process {world.rank} cannot "
        "go on alone",
        "see the stage's log; one that said nothing was killed, mostly for lack of memory",
    )


def _leave(world: World, say: Callable[[str], None]) -> NoReturn:
    say(json.dumps(_fields(_abandoned(world))))
    os._exit(Abandoned.exit_code)


def _listen(stage: Stage) -> None:
    def stop(*_: Any) -> None:
        stage.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # tests run stages in threads
            signal.signal(number, stop)


def _fields(error: StageError) -> dict[str, Any]:
    return {
        "event": "error",
        "kind": type(error).__name__,
        "reason": error.reason,
        "hint": error.hint,
        "exit": error.exit_code,
    }


def _failed(error: StageError, stage: Stage | None, say: Callable[[str], None]) -> int:
    if stage is not None:
        stage.world.over()
    # Other processes may not know: each says what happened to it.
    if stage is None or stage.first or error.exit_code not in (Interrupted.exit_code,):
        say(json.dumps(_fields(error)))
    return error.exit_code
