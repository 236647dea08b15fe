"""Measures kernels.cu on this machine's GPU and writes GPU.jsonl (h100.jsonl): of each kernel its
time, what Nsight Compute counts (counters.txt), and what the compiler says of it.

    python3 judge/testdata/measured/make.py [FOLDER for GPU.jsonl]

Needs nvcc and ncu on the path, the right to read counters, and a Python with torch. About 25 s.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNS = 3


def sizes(text: str) -> list[int]:
    """Returns a grid or a block of ncu's, "(1024, 1, 1)"."""
    return [int(n) for n in text.strip("()").split(",")]


def bare(name: str) -> str:
    return name.removeprefix("void ").split("(")[0].split("<")[0]


def counted(rows: list[dict[str, str]], names: list[str]) -> dict[str, float]:
    """Returns the counters of launches alike: sums, and means weighted by time."""
    found = {}
    times = [float(r["gpu__time_duration.sum"]) for r in rows]
    for name in names:
        values = [float(r[name]) for r in rows]
        mean = sum(v * t for v, t in zip(values, times, strict=True)) / sum(times)
        found[name] = float(f"{sum(values) if name.endswith('.sum') else mean:.4g}")
    return found


def main(to: Path) -> None:
    sys.path.insert(0, str(HERE.parents[2] / "hwfeedback" / "harness"))
    from kwharness.build import sass

    names = (HERE / "counters.txt").read_text().split()
    with tempfile.TemporaryDirectory() as folder:
        program, cubin = f"{folder}/kernels", f"{folder}/kernels.cubin"
        for out, more in ((program, []), (cubin, ["-cubin"])):
            compile_ = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90a", *more, "-o", out]
            subprocess.run([*compile_, str(HERE / "kernels.cu")], check=True)
        built = {bare(k["name"]): k for k in sass.facts(Path(cubin).read_bytes())}
        took: dict[str, list[float]] = {}
        about: dict[str, list[str]] = {}
        for _ in range(RUNS):
            said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
            for name, ms, least, launches, kernel in csv.reader(said.splitlines()):
                took.setdefault(name, []).append(float(ms))
                about[name] = [least, launches, kernel]
        ncu = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv"]
        ncu += ["--page", "raw", "--print-units", "base", "--log-file", f"{folder}/raw.csv"]
        ncu += ["--metrics", ",".join(["gpu__time_duration.sum", *names])]
        subprocess.run([*ncu, program], check=True, stdout=subprocess.DEVNULL)
        lines = [s for s in Path(folder, "raw.csv").read_text().splitlines() if s.startswith('"')]
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    gpu = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\n")[0]
    model = gpu.removeprefix("NVIDIA ").split()[0].lower()
    launched: dict[str, list[dict[str, str]]] = {}
    for row in list(csv.DictReader(lines))[1:]:  # the first holds units
        plain = {k: v.replace(",", "") if "__" in k else v for k, v in row.items()}
        launched.setdefault(bare(row["Kernel Name"]), []).append(plain)
    with (to / f"{model}.jsonl").open("w") as f:
        for name, (least, launches, kernel) in about.items():
            rows = launched[kernel]
            ms = sum(float(r["gpu__time_duration.sum"]) for r in rows) / 1e6
            profile: dict[str, Any] = {
                "name": rows[0]["Kernel Name"],
                "whose": "custom",
                "launches": len(rows),
                "ms": round(ms, 6),
                "share": 1,
                "grid": sizes(rows[0]["Grid Size"]),
                "block": sizes(rows[0]["Block Size"]),
                "metrics": counted(rows, names),
            }
            entry = {
                "case": name,
                "launches": int(launches),
                "candidate_ms": statistics.median(took[name]),
                "least_bytes": int(least),
                "kernel": profile,
                "built": built[kernel],
            }
            f.write(json.dumps(entry) + "\n")
            print(f"{name:16} {entry['candidate_ms']:.4f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
