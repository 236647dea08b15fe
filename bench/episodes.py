"""Episodes an hour of `train serve`, of one round each: distinct candidates, and repeated ones.

python bench/episodes.py --data-dir D [--episodes 60] [--repeats 600]: it starts the server. A
distinct candidate differs in its C++, so that it is built and measured; a repeated one has the
bytes of another, of which there are four. Prints a line for each, with where verdicts came from.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import time
import urllib.request
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=3600) as answer:
        return dict(json.load(answer))


def episode(url: str, reference: str, candidate: str) -> int | None:
    """Returns the reward of one round with the candidate; None: dropped."""
    begun = call(f"{url}/v1/episodes", {"reference": reference, "rounds": 1})
    turn = {"call": 0, "text": f"```python\n{candidate}\n```"}
    reward = call(f"{url}/v1/episodes/{begun['id']}/turns", turn)["reward"]
    return None if reward is None else int(reward)


def measure(url: str, what: str, reference: str, candidates: list[str], at_once: int) -> None:
    """Prints how many episodes an hour there are, with so many at once."""
    before = call(f"{url}/v1/stats")["verdicts"]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        rewards = list(pool.map(lambda c: episode(url, reference, c), candidates))
    took = time.monotonic() - began
    after = call(f"{url}/v1/stats")["verdicts"]
    counts = {
        k: after[k] - before[k] for k in ("measured", "cached", "joined", "failed", "batches")
    }
    shown = {r: rewards.count(r) for r in dict.fromkeys(rewards)}
    n = len(candidates)
    print(
        f"{what}: {n} episodes, {at_once} at once, {took:.1f} s, {3600 * n / took:.0f} an hour;",
        f"{counts}; rewards {shown}",
        flush=True,
    )


def main() -> None:
    """Starts the server and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "bin/kernelwright"))
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rows", type=int, default=512, help="of the softmax")
    a = parser.parse_args()
    command = [a.bin, "train", "serve", "--listen", "127.0.0.1:0", "--data-dir", a.data_dir]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    reference = (ROOT / "examples/softmax.py").read_text().replace("2048", str(a.rows))
    text = (ROOT / "examples/candidates/softmax_native.py").read_text()
    stamp = time.time_ns()

    def candidate(n: int) -> str:
        return text.replace('source=r"""', f'source=r"""// {stamp} {n}', 1)

    try:
        measure(url, "first", reference, [candidate(-1)], 1)
        measure(url, "distinct", reference, [candidate(n) for n in range(a.episodes)], a.at_once)
        repeated = [candidate(n % 4) for n in range(a.repeats)]
        measure(url, "repeated", reference, repeated, a.at_once)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
