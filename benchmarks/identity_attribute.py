"""The identity/attribute model: seconds an iteration beside its limit, linear in frames, recovery.

One thread, everything measured in one run::

    python benchmarks/identity_attribute.py [--frames 20000] [--parts iteration linear recovery]
        [--out benchmarks/results/identity_attribute.json]

- ``iteration``: 40 identities of 2 attributes, 100 features: least and median CPU seconds of an iteration of
  the frame posterior (engine included), beside the time that its matrix products, 4 K (D + K) operations a
  frame, take at the rate of one large product on this machine; and seconds of q(lambda), a part of it.
- ``linear``: the same at half and at twice as many frames.
- ``recovery``: 20 sequences of 200 frames, 20 features, 4 identities of 2 attributes, seeds 0 to 4.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

IDENTITIES, ATTRIBUTES, FEATURES, LENGTH = 40, 2, 100, 200


def rate_of_products(n: int = 1500) -> float:
    """Return operations a second of a large matrix product, the best of five."""
    a = np.random.default_rng(0).normal(size=(n, n))
    seconds = []
    for _ in range(5):
        begun = time.process_time()
        _ = a @ a
        seconds.append(time.process_time() - begun)
    return 2.0 * n**3 / min(seconds)


def iteration_seconds(folder: Path, n_frames: int, n: int = 12) -> tuple[float, float]:
    """Return the least and the median CPU seconds of an iteration of a fit to noise of this size."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models import IdentityAttribute

    y = np.random.default_rng(1).normal(size=(n_frames, FEATURES)).astype(np.float32)
    sequences = (np.arange(n_frames) // LENGTH).astype(str)
    path = folder / f"{n_frames}.zarr"
    store = factorflow.write_dataset(path, {"y": y}, {"y": "gaussian"}, sequences=sequences)
    ticks: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            ticks.append(time.process_time())

    model = IdentityAttribute(
        n_identities=IDENTITIES,
        n_attributes=ATTRIBUTES,
        factorisation="frame",
        start="random",
        relevance=False,
        max_iter=n,
        tol=1e-300,
    )
    factorflow.fit(store, model, on_event=on_event)
    spent = np.diff(ticks)[2:]
    return float(spent.min()), float(np.median(spent))


def dynamics_seconds(n_frames: int) -> float:
    """Return CPU seconds of q(lambda) of all attributes, the best of five."""
    from factorflow.models.identity_attribute.dynamics import expectations

    lam = np.linspace(0.3, 0.99, IDENTITIES * ATTRIBUTES)
    half = np.full(lam.size, n_frames / 2)
    seconds = []
    for _ in range(5):
        begun = time.process_time()
        expectations(np.stack([half, -half, 2 * half * lam, -half]))
        seconds.append(time.process_time() - begun)
    return min(seconds)


def iteration(folder: Path, n_frames: int) -> dict[str, Any]:
    """Return seconds of an iteration beside the limit."""
    k = IDENTITIES * ATTRIBUTES
    rate = rate_of_products()
    limit = 4.0 * k * (FEATURES + k) * n_frames / rate
    least, median = iteration_seconds(folder, n_frames)
    dynamics = dynamics_seconds(n_frames)
    return {
        "n_frames": n_frames,
        "seconds": least,
        "median_seconds": median,
        "dynamics_seconds": dynamics,
        "limit_seconds": limit,
        "product_gflops": rate / 1e9,
        "times_limit": (least - dynamics) / limit,
    }


def linear(folder: Path, n_frames: int) -> dict[str, Any]:
    """Return seconds a frame at half and twice the number of frames."""
    sizes = n_frames // 2, 2 * n_frames
    seconds = [iteration_seconds(folder, size)[0] for size in sizes]
    each = {str(size): 1e6 * s / size for size, s in zip(sizes, seconds, strict=True)}
    return {"microseconds_a_frame": each}


def recovery(folder: Path) -> dict[str, Any]:
    """Return what is found of simulated truth; the last fifth of 25 sequences is kept back."""
    from factorflow.reproduce.identity import reproduce

    return reproduce(folder / "recovery", n_sequences=25)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--parts", nargs="+", default=["iteration", "linear", "recovery"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": platform.machine(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "iteration" in given.parts:
            found["iteration"] = iteration(folder, given.frames)
        if "linear" in given.parts:
            found["linear"] = linear(folder, given.frames)
        if "recovery" in given.parts:
            found["recovery"] = recovery(folder)
    text = json.dumps(found, indent=2) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
