"""Seconds of an iteration by the number of workers: a model, beside what `scale.py` measured; predictions.

    python benchmarks/scale.py --workers 1 2 4 8 16 --seconds 0.1 --json benchmarks/results/scale.json
    python benchmarks/scale_model.py              # prints the tables of docs/scale.md
    python benchmarks/scale_model.py --json scale-100mbit.json   # beside runs over links of a given bandwidth
    python benchmarks/scale_model.py --json scale-5ms.json       # beside runs whose messages take longer

An iteration is a chain without overlap: the state goes out, the longest group computes, neighbours merge in
steps, the root merges what is left and updates, and the scheduler does its part for every task. The client
submits the next rounds meanwhile. Which tasks there are, who sends what to whom and in how many shares, is
asked of the engine. Seconds of the scheduler for a task come from the runs that the model is compared with;
the rest of it does not.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from factorflow.engine.executors.assignment import cut_aligned
from factorflow.engine.memory_limits import KEPT_ROUNDS
from factorflow.engine.tree import feature_shares, merge_steps, n_nodes, relay_parents

RESULTS = Path(__file__).parent / "results" / "scale.json"

LATENCY = 1e-3
"""Seconds of a message between two tasks: to the scheduler, to the next worker, the transfer's beginning."""

HOPS = 4
"""Messages of which that consists: to the scheduler, to the next worker, its request, the answer."""

ADDED_BYTES = 2e9
"""Bytes of statistics that one core adds up in a second."""

NETWORKS = {"10 GbE": 1.1e9, "100 GbE": 1.1e10, "loopback": 1e9}
"""Bytes a second of one worker."""

PAYLOAD = 0.95
"""Share of a link's bandwidth that is left beside the headers of packets of 1500 bytes."""


@dataclass(frozen=True)
class Workload:
    """What an iteration of a model does.

    Parameters
    ----------
    seconds : float
        Of all blocks, by one core.
    blocks : int
        Blocks.
    statistics, state : float
        Bytes of a set of statistics (a node of the merge tree), and of what every worker gets.
    update : float
        Seconds of the update at the root.
    runs : int
        Runs of 2048 features: shares of the statistics at most.
    local : float
        Bytes of local state of all blocks.
    origin : str
        Where the seconds come from.
    """

    seconds: float
    blocks: int
    statistics: float
    state: float
    update: float = 0.0
    runs: int = 1
    local: float = 0.0
    origin: str = ""


WORKLOADS = {
    "Gaussian, 1e6 x 5000, K = 20": Workload(
        17.5, 1000, 1.0e6, 1.6e6, 0.02, 3, 0.0, "35 ms a pass of 5000 x 2000 entries: 3.5 ns an entry"
    ),
    "counts, 1e6 x 20 000, K = 20": Workload(
        500.0,
        1000,
        3.7e7,
        6.4e6,
        0.1,
        10,
        1.8e9,
        "62 ms a pass of 5000 x 500 entries with a bound: 25 ns an entry",
    ),
    "genotypes, 488 000 x 147 000, K = 20": Workload(
        570.0,
        976,
        2.7e8,
        4.7e7,
        0.7,
        72,
        0.0,
        "79 ms a pass of 5000 x 2000 entries, a tenth missing: 7.9 ns an entry",
    ),
    "probit, 1e7 x 100, K = 20": Workload(
        70.0, 1000, 2.1e5, 2.0e4, 0.02, 1, 5.0e8, "35 s a sweep by two workers, reading the store included"
    ),
    "table, 1e8 rows, 1e5 levels, K = 20": Workload(
        100.0, 1000, 3.2e7, 3.2e7, 0.05, 0, 0.0, "assumed: 1 microsecond a row"
    ),
}


def predict(
    load: Workload, workers: int, network: str, scheduler: float, delay: float = 0.0
) -> dict[str, float]:
    """Return seconds of the parts of an iteration.

    `scheduler`: of the scheduler for each task; `delay`: that a message takes beside what it takes here.
    """
    latency = LATENCY + HOPS * delay
    groups, speed = cut_aligned(load.blocks, workers), NETWORKS[network]
    n = len(groups)
    shares = feature_shares(groups, int(load.statistics), load.runs)
    node = (load.statistics / speed + load.statistics / ADDED_BYTES) / max(1, shares)
    runs, merging, merges = list(groups), 0.0, 1
    for step in merge_steps(groups):
        most = max(sum(n_nodes(runs[i]) for i in merge.run) for merge in step)
        merging += latency + most * node
        merges += len(step)
        runs = [range(runs[merge.run[0]].start, runs[merge.run[-1]].stop) for merge in step]
    root = latency + sum(map(n_nodes, runs)) * node if n > 1 else 0.0
    parents = relay_parents(n, int(load.state))
    relays, depth, last = set(parents) - {0}, 0, n - 1
    while last:
        depth, last = depth + 1, parents[last - 1]
    sent = max(Counter(parents).values(), default=0) * load.state / speed + (latency if relays else 0.0)
    merging_too = len({merge.group for merge in (merge_steps(groups) or [[]])[0]})
    # Every eighth round, or not: then it goes with the statistics.
    kept = (n - merging_too) / KEPT_ROUNDS if load.local / n >= load.statistics else 0
    return {
        "compute": max(map(len, groups)) * load.seconds / load.blocks,
        "merging": merging + root,
        "update": load.update / max(1, shares),
        "state": depth * sent + (HOPS * delay if n > 1 else 0.0),
        "scheduler": scheduler
        * (n + kept + (1 + shares) * merges + (shares and (1 + shares) * n) + len(relays)),
    }


def seconds_a_task(measured: dict[str, Any], numbers: list[int]) -> float:
    """Return seconds of the scheduler for a task, by least squares over the runs.

    Beside a part that grows with the time that passes: heartbeats.
    """
    runs = [measured[str(n)] for n in numbers]
    tasks = [n + 1 + sum(map(len, merge_steps(cut_aligned(measured["blocks"], n)))) for n in numbers]
    causes = [[t, run["ms_an_iteration"]] for t, run in zip(tasks, runs, strict=True)]
    used = [run["cpu_ms_of_scheduler"] for run in runs]
    return max(float(np.linalg.lstsq(np.array(causes), np.array(used), rcond=None)[0][0]), 0.0) / 1e3


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS, help="what scale.py wrote")
    measured = json.loads(parser.parse_args().json.read_text())
    numbers = sorted(int(name) for name in measured if name.isdigit())
    scheduler = seconds_a_task(measured, numbers)
    print(f"scheduler: {1e3 * scheduler:.2f} ms of CPU a task")
    set_bytes = measured["set_mib"] * 2**20
    seconds = measured["blocks"] * measured["seconds_a_block"]
    link = "loopback"
    if "mbit" in measured:
        link = f"{measured['mbit']} Mbit/s"
        NETWORKS[link] = PAYLOAD * measured["mbit"] * 1e6 / 8
    slept = Workload(seconds, measured["blocks"], set_bytes, 16e3)
    delay = measured.get("delay_ms", 0.0) / 1e3
    print("\n| workers | predicted (ms) | measured (ms) | ratio |\n|---|---|---|---|")
    for n in numbers:
        seconds = sum(predict(slept, n, link, scheduler, delay).values())
        found = measured[str(n)]["ms_an_iteration"] / 1e3
        print(f"| {n} | {1e3 * seconds:.0f} | {1e3 * found:.0f} | {seconds / found:.2f} |")
    print("\n| workload | network | s, one worker | 10 workers | 100 | 1000 | what is longest at 1000 |")
    print("|---|---|---|---|---|---|---|")
    for name, load in WORKLOADS.items():
        alone = load.seconds + load.update
        for network in ("10 GbE", "100 GbE"):
            parts = {n: predict(load, n, network, scheduler) for n in (10, 100, 1000)}
            shares = [f"{alone / n / sum(parts[n].values()):.0%}" for n in parts]
            longest = max(parts[1000], key=lambda part: parts[1000][part])
            spent = f"{longest}, {parts[1000][longest]:.2f} of {sum(parts[1000].values()):.2f} s"
            print(f"| {name} | {network} | {alone:.1f} | {' | '.join(shares)} | {spent} |")


if __name__ == "__main__":
    main()
