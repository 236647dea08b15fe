"""Prints how many verdicts an hour `kernelwright eval --batch` reaches, and where their time goes.

The candidates are one file many times, each with a remark in its kernel's source and a statement
that nobody has seen, so that neither a build nor a verdict is in a cache. The first few are left
out of the rate: they find calibration, baselines and a process that has imported PyTorch.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
LEFT_OUT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", default=str(ROOT / "examples" / "softmax.py"))
    parser.add_argument(
        "--candidate", default=str(ROOT / "examples" / "candidates" / "softmax_native.py")
    )
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    parser.add_argument("--data-dir", default=str(ROOT / ".kernelwright" / "bench"))
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    args = parser.parse_args()
    source = pathlib.Path(args.candidate).read_text()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.count):
            mark = f"{time.time_ns()}{i}"
            text = source.replace('r"""', f'r"""// {mark}\n', 1) + f"\nvariant = {mark}\n"
            (pathlib.Path(folder) / f"{i:04}.py").write_text(text)
        command = [args.bin, "eval", args.reference, "--batch", folder, "--device", args.device]
        command += ["--data-dir", args.data_dir, "--python", args.python, "--json"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        verdicts, times = [], []
        for line in run.stdout:
            verdicts.append(json.loads(line))
            times.append(time.monotonic())
        if run.wait():
            sys.exit(f"eval ended with exit code {run.returncode}")
    bad = [v for v in verdicts if v["status"] != "correct"]
    if bad or len(verdicts) <= LEFT_OUT + 1:
        sys.exit(f"{len(bad)} of {len(verdicts)} are not correct: {bad[:1]}")
    took = [b - a for a, b in zip(times[LEFT_OUT:], times[LEFT_OUT + 1 :], strict=False)]
    rate = 3600 * len(took) / (times[-1] - times[LEFT_OUT])
    name = pathlib.Path(args.candidate).name
    kept = verdicts[LEFT_OUT + 1 :]
    eager = statistics.median(v["baselines"]["eager"] for v in kept)
    middle = statistics.median(took)
    print(f"{name}, eager {eager:.3g} ms: {rate:.0f} verdicts an hour over {len(took)}")
    print(f"seconds from one to the next: median {middle:.2f}, most {max(took):.2f}")
    parts = {p for v in kept for p in v["cost_s"]}
    mean = {p: statistics.mean(v["cost_s"].get(p, 0.0) for v in kept) for p in parts}
    said = sorted(mean.items(), key=lambda p: -p[1])
    print("mean seconds by part: " + ", ".join(f"{p} {s:.3f}" for p, s in said if s >= 0.001))


if __name__ == "__main__":
    main()
