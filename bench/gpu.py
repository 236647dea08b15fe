"""Runs what needs a GPU, tests and figures, in parts: as much as ``--seconds`` allow, and goes on
from there the next time, also on another machine that is given the folder of results.

gpu.toml has the steps, each a command. What one printed lies in RESULTS/NAME.txt, and what came of
it in RESULTS/steps.json. One that ended well is not done again. One that could not be finished in
time goes on, by what it keeps itself in RESULTS or in the record below RESULTS/data, and tests by
which of them passed. One that failed is left alone until ``--again`` names it, so that it holds up
nobody; of tests those that passed are not done again. One whose needs are not here (a checkout of a
peer, Go, a program that is to be built) is left out, which is said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[1]
# What has more to do than it had time for ends with this.
MORE = os.EX_TEMPFAIL
# Who does not look at a clock is interrupted so long before the end.
GRACE_S = 40.0


@dataclass(frozen=True)
class Step:
    """A command with ``needs``, which are missing here; not begun in under ``least`` seconds."""

    name: str
    words: list[str]
    least: float
    needs: list[str]

    @property
    def tests(self) -> bool:
        return "pytest" in self.words

    @property
    def looks_at_the_clock(self) -> bool:
        script = pathlib.Path(self.words[1]) if len(self.words) > 1 else ROOT
        return script.parent == ROOT / "bench" and '"--seconds"' in script.read_text()


def steps(args: argparse.Namespace) -> dict[str, Step]:
    data = args.results / "data"
    given = {
        "python": sys.executable,
        "device": args.device,
        "kind": args.device.partition(":")[0],
        "results": args.results,
        "kernelbench": args.kernelbench and args.kernelbench.resolve() / "KernelBench",
        "cudaforge": args.cudaforge and args.cudaforge.resolve(),
    }
    values = {name: shlex.quote(str(value)) for name, value in given.items()}
    program, python = shlex.quote(args.bin), values["python"]
    values["program"] = program
    values["here"] = f"--data-dir {shlex.quote(str(data))} --python {python}"
    values["here"] += f" --device {values['device']}"
    values["ours"] = f"--bin {program} --data-dir {shlex.quote(str(data))}"
    values["bench"] = f"{python} {shlex.quote(str(ROOT / 'bench'))}/"
    found = {}
    for step in tomllib.loads((ROOT / "bench" / "gpu.toml").read_text())["step"]:
        asked = {name for _, name, _, _ in string.Formatter().parse(step["command"]) if name}
        needs = [f"--{name}" for name in sorted(asked & given.keys()) if given[name] is None]
        words = shlex.split(step["command"].format(**values))
        if not shutil.which(words[0]):
            needs.append(words[0])
        needs += [file for file in step.get("needs", []) if not (ROOT / file).exists()]
        found[step["name"]] = Step(step["name"], words, step.get("least", 60), needs)
    return found


class Results:
    """What is known of steps, in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.json"
        self.came: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError):
            for name, (came, seconds) in json.loads(self._path.read_text()).items():
                self.came[name], self.seconds[name] = came, seconds

    def output(self, step: Step) -> pathlib.Path:
        return self.folder / f"{step.name}.txt"

    def is_over(self, step: Step) -> bool:
        return self.came.get(step.name, "more") != "more"

    def put(self, step: Step, came: str, seconds: float) -> None:
        self.came[step.name] = came
        self.seconds[step.name] = round(self.seconds.get(step.name, 0.0) + seconds, 1)
        rows = {name: [self.came[name], self.seconds[name]] for name in self.came}
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(rows, indent=1) + "\n")
        written.replace(self._path)

    def told(self, step: Step) -> str:
        missing = f"needs {', '.join(step.needs)}" if step.needs else "not begun"
        came = self.came.get(step.name, missing)
        if not step.tests or step.name not in self.came:
            return came
        outcomes = Counter(outcomes_of(self.output(step)).values())
        return came + "".join(f", {n} {o.lower()}" for o, n in sorted(outcomes.items()))


def outcomes_of(output: pathlib.Path) -> dict[str, str]:
    """Returns by test what became of it at last, as pytest -v printed it."""
    if not output.exists():
        return {}
    found = re.findall(r"(?m)^(\S+::.*?) (PASSED|SKIPPED|FAILED|ERROR)\b", output.read_text())
    return dict(found)


def tests_left(step: Step, output: pathlib.Path) -> list[str]:
    asked = [*step.words, "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    every = [line for line in done.stdout.splitlines() if "::" in line]
    if not every:
        sys.exit(f"{step.name}: pytest found no test: {done.stdout.strip()[-300:]}")
    outcomes = outcomes_of(output)
    return [t for t in every if outcomes.get(t) not in ("PASSED", "SKIPPED")]


def run(step: Step, output: pathlib.Path, seconds: float) -> str:
    """Returns what came of it: "good", "more", or how it failed."""
    words, mode = step.words, "w"
    if step.tests:
        left = tests_left(step, output)
        if not left:
            return "good"
        words, mode = [*words[: words.index("pytest") + 1], "-p", "no:cacheprovider"], "a"
        words += ["-vv", "-m", "slow or not slow", *left]
    elif step.looks_at_the_clock:
        words = [*words, "--seconds", f"{seconds - GRACE_S:.0f}"]
    in_time = True
    with output.open(mode) as f:
        process = subprocess.Popen(words, cwd=ROOT, stdout=f, stderr=subprocess.STDOUT)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            in_time = False
            process.send_signal(signal.SIGINT)
            try:
                code = process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    if code == 0:
        return "good"
    return "more" if code == MORE or not in_time else f"failed with exit code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--results", type=pathlib.Path, required=True, help="a folder to go on in")
    parser.add_argument("--seconds", type=float, default=540.0, help="all together, at most")
    parser.add_argument("--only", default="", help="names of steps, with commas, in their order")
    parser.add_argument("--again", default="", help="names of steps to begin anew, with commas")
    parser.add_argument(
        "--device", default="cuda", help="cuda:1, say: beside another run; cuda:all"
    )
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--kernelbench", type=pathlib.Path, help="a checkout of KernelBench")
    parser.add_argument("--cudaforge", type=pathlib.Path, help="a checkout of CudaForge")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    which = args.device.partition(":")[2]
    if which and which != "all":
        os.environ["CUDA_VISIBLE_DEVICES"] = which  # of what does not ask the program
    args.results = args.results.resolve()
    results, every = Results(args.results), steps(args)
    names = list(filter(None, args.only.split(","))) or list(every)
    anew = list(filter(None, args.again.split(",")))
    for name in [*names, *anew]:
        if name not in every:
            sys.exit(f"there is no step {name!r}: there are {', '.join(every)}")
    for name in anew:
        results.came.pop(name, None)
    for step in (every[n] for n in names):
        begun = time.monotonic()
        left = end - begun - GRACE_S
        if step.needs or results.is_over(step) or left < step.least:
            continue
        came = run(step, results.output(step), left)
        results.put(step, came, time.monotonic() - begun)
        print(f"{step.name}: {came}", flush=True)
    print(f"\n{'step':18} seconds  what came of it")
    for step in (every[n] for n in names):
        print(f"{step.name:18} {results.seconds.get(step.name, 0):7.0f}  {results.told(step)}")


if __name__ == "__main__":
    main()
