"""What a build of each form of a CUDA candidate takes, by ``kernelwright build`` and by PyTorch's
own ``load_inline`` or ``load``, which is what KernelBench and CUDA Agent call. It takes no GPU.

    python bench/build_times.py [--python PYTHON] [--repeats 3]

Each build is of a file that no cache has seen (a remark in its kernel). Ours is the builder's own
time, ``build.seconds``; PyTorch's that of the call, in a process that has imported it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
CANDIDATES = ROOT / "examples" / "candidates"
FORMS = (
    ("softmax_cuda_kernel.py", "native, NVRTC", False),
    ("softmax_cuda.py", "native, nvcc", False),
    ("softmax_cuda_load_inline.py", "load_inline", True),
    ("softmax_work_folder_cuda", "work folder", True),
)
ARCH = "sm_90a"
FLAGS = {"extra_cflags": ["-O3"], "extra_cuda_cflags": ["-O3", "--use_fast_math"]}


def unseen(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns a copy with a remark in its kernel."""
    mark = f"// {time.time_ns()}\n"
    source, copy = CANDIDATES / name, folder / name
    if source.is_dir():
        shutil.copytree(source, copy)
        for file in copy.rglob("*.c*"):
            file.write_text(mark + file.read_text())
    else:
        copy.write_text(source.read_text().replace('r"""', f'r"""\n{mark}'))
    return copy


def ours(args: argparse.Namespace, candidate: pathlib.Path) -> float:
    command = [args.bin, "build", str(candidate), "--arch", ARCH, "--json"]
    command += ["--python", args.python, "--data-dir", args.data_dir]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return float(json.loads(done.stdout)["builds"][0]["build"]["seconds"])


def pytorchs(args: argparse.Namespace, candidate: pathlib.Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "TORCH_EXTENSIONS_DIR": folder,
            "TORCH_CUDA_ARCH_LIST": ARCH.removeprefix("sm_").replace("0", ".0"),
        }
        command = [args.python, __file__, "--build", str(candidate)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode:
        sys.exit(f"PyTorch could not build {candidate.name}")
    return float(done.stdout.split()[-1])


def build(candidate: pathlib.Path) -> None:
    """Prints the seconds that PyTorch takes for it."""
    from torch.utils import cpp_extension

    begun = time.perf_counter()
    if candidate.is_dir():
        sources = [str(p) for p in candidate.rglob("*.c*") if p.suffix in (".cu", ".cpp")]
        cpp_extension.load("cuda_extension", sources, **FLAGS)
    else:
        exec(compile(candidate.read_text(), candidate.name, "exec"), {"__name__": "candidate"})
    print(time.perf_counter() - begun)


def row(args: argparse.Namespace, name: str, form: str, torchs: bool) -> None:
    taken: list[list[float]] = [[], []]
    for i in range(args.repeats + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds = [ours(args, unseen(name, pathlib.Path(folder)))]
        if torchs and i:
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(pytorchs(args, unseen(name, pathlib.Path(folder))))
        if i:  # the first may precompile a header, once for a machine
            for of, s in zip(taken, seconds, strict=False):
                of.append(s)
    said = [f"{statistics.median(of):.2f}" if of else "–" for of in taken]
    print(f"| `{name}` | {form} | **{said[0]}** | {said[1]} |", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--bin", default=str(ROOT / "bin" / "kernelwright"))
    p.add_argument("--python", default=sys.executable, help="one that has PyTorch for CUDA")
    p.add_argument("--data-dir", default=str(ROOT / ".kernelwright"))
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--build", type=pathlib.Path, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.build:
        build(args.build)
        return
    print("| candidate | form | ours, s | PyTorch's, s |\n|---|---|---:|---:|")
    for name, form, torchs in FORMS:
        row(args, name, form, torchs)


if __name__ == "__main__":
    main()
