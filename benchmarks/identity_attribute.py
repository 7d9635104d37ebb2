"""The identity/attribute model: seconds an iteration beside its limit, linear in frames, recovery, a peer.

One thread, everything measured in one run::

    python -m venv peers && peers/bin/pip install -r benchmarks/requirements-identity_attribute.txt
    python benchmarks/identity_attribute.py [--frames 20000] [--parts iteration linear recovery intervals
        peers] [--peer-python peers/bin/python] [--out benchmarks/results/identity_attribute.json]

- ``iteration``: 40 identities of 2 attributes, 100 features: least and median CPU seconds of an iteration of
  the frame posterior (engine included), beside the time that its matrix products, 4 K (D + K) operations a
  frame, take at the rate of one large product on this machine; and seconds of q(lambda), a part of it.
- ``linear``: the same at half and at twice as many frames.
- ``recovery``: 20 sequences of 200 frames, 20 features, 4 identities of 2 attributes, seeds 0 to 4.
- ``intervals``: of 20 simulations of that kind, how many of lambda, of the rows of T and of rho are within
  their 95 % intervals, and of how many; of lambda within those of q(lambda) itself; the median width.
- ``peers``: 40 sequences of 50 frames, 40 features, simulated from this model with 8 identities of 2
  attributes, seeds 0 to 2; beside it, dynamax's EM of linear Gaussian state-space models with as many states
  (16), from principal components. CPU seconds of an iteration, least and median, without the first three
  (compilation), and the log density of a frame in ten sequences kept back: the peer's exact, by its Kalman
  filter; ours a lower bound of that of a normalised density, `Posterior.one_step`; and that of a normal
  distribution.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).parents[1]))  # of the clone, for its examples
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np  # noqa: E402 - after the number of threads is set

IDENTITIES, ATTRIBUTES, FEATURES, LENGTH = 40, 2, 100, 200

PEERS = {"n_features": 40, "n_identities": 8, "n_attributes": 2, "n_sequences": 50}
"""What is simulated to stand beside a peer: sequences of `PEER_LENGTH` frames, the last `KEPT` kept back."""

PEER_LENGTH, KEPT, PEER_ITERATIONS, PEER_SEEDS = 50, 10, 300, 3


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


def normal_density(shown: Any, new: Any) -> float:
    """Return the mean log density of frames under a normal distribution fitted to others."""
    from scipy.stats import multivariate_normal

    return float(multivariate_normal(shown.mean(axis=0), np.cov(shown.T)).logpdf(new).mean())


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
    from examples.reproduce.identity import reproduce

    return reproduce(folder / "recovery", n_sequences=25)


def intervals(folder: Path, seeds: int = 20) -> dict[str, Any]:
    """Return how often 95 % intervals of chains cover what 20 sequences of 200 frames were simulated with."""
    import factorflow
    from examples.reproduce.identity import recovered
    from factorflow import models

    found: dict[str, Any] = {}
    for seed in range(seeds):
        data = factorflow.simulate(
            "identity_attribute", folder / f"intervals_{seed}.zarr", 4000, seed=seed + 2000, n_sequences=20,
            equal_lengths=True, n_features=20, n_identities=4, n_attributes=2,
        )  # fmt: skip
        posterior = factorflow.fit(data, models.IdentityAttribute(n_identities=4), seed=seed)
        names = "loadings_y", "present", "dynamics", "transition", "precision_y"
        truth = {name: np.asarray(data.truth[name].values) for name in names}
        for name, counts in recovered(posterior, truth)["covered"].items():
            found[name] = [int(n) for n in np.add(found.get(name, [0, 0]), counts)]
        of_q = _within_q(posterior, truth)
        found["dynamics_of_q"] = [int(n) for n in np.add(found.get("dynamics_of_q", [0, 0]), of_q)]
        width = np.ptp(posterior.variable("dynamics_interval").values, axis=-1)
        found.setdefault("median_width", []).append(float(np.median(width)))
    return found | {"median_width": float(np.median(found["median_width"]))}


def _within_q(posterior: Any, truth: dict[str, Any]) -> tuple[int, int]:
    """Return how many lambda are within the 95 % intervals of q(lambda) itself, and how many there are."""
    from examples.reproduce.identity import nearest_identities
    from factorflow.models.identity_attribute.dynamics import quantiles

    nearest = nearest_identities(posterior, truth)
    parameters = posterior.variable("dynamics_parameters").values[:, nearest]
    low, high = quantiles(parameters.reshape(4, -1), np.array([0.025, 0.975])).T.reshape(
        2, *parameters.shape[1:]
    )
    order = np.argsort(posterior.variable("dynamics").values[nearest], axis=1)
    low, high = (np.take_along_axis(bound, order, axis=1) for bound in (low, high))
    true = np.sort(truth["dynamics"], axis=1)
    return int(((low <= true) & (true <= high)).sum()), true.size


def peers(folder: Path, python: str | None) -> dict[str, Any]:
    """Return seconds and log densities of ours and of the peer, by seed."""
    import factorflow

    found: dict[str, Any] = {}
    for seed in range(PEER_SEEDS):
        simulated = factorflow.simulate(
            "identity_attribute",
            folder / f"peers{seed}.zarr",
            PEERS["n_sequences"] * PEER_LENGTH,
            seed=seed + 2000,
            equal_lengths=True,
            **PEERS,
        )
        y = np.concatenate([simulated.block(i).data["y"] for i in range(simulated.n_blocks)])
        kept = len(y) - KEPT * PEER_LENGTH
        shown, new = y[:kept].astype(np.float64), y[kept:].astype(np.float64)
        rows = found[str(seed)] = {"normal": {"log_density": normal_density(shown, new)}}
        rows["ours"] = run_ours(folder / f"seed{seed}", shown, new, seed)
        if python:
            file = folder / f"seed{seed}.npz"
            np.savez(file, shown=shown, new=new)
            for precision in ("float32", "float64"):
                command = [python, __file__, "--worker", str(file), precision]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                rows[f"dynamax {precision}"] = json.loads(done.stdout.splitlines()[-1])
        print(seed, json.dumps(rows), file=sys.stderr, flush=True)
    return found


def run_ours(folder: Path, shown: Any, new: Any, seed: int) -> dict[str, Any]:
    """Fit both factorisations, one after the other; seconds are of the iterations of each."""
    import factorflow
    from factorflow.engine.events import IterationDone
    from factorflow.models import IdentityAttribute

    stores = []
    for name, y in {"shown": shown, "new": new}.items():
        sequences = (np.arange(len(y)) // PEER_LENGTH).astype(str)
        path = folder / f"{name}.zarr"
        path.parent.mkdir(exist_ok=True)
        whole = 2 ** (len(y) - 1).bit_length()  # one block, as the peer has it
        views, kinds = {"y": y}, {"y": "gaussian"}
        stores.append(factorflow.write_dataset(path, views, kinds, sequences=sequences, block_rows=whole))
    ticks: dict[str, list[float]] = {}

    def on_event(event: Any) -> None:
        if isinstance(event, IterationDone):
            ticks.setdefault(event.stage, []).append(time.process_time())

    model = IdentityAttribute(n_identities=PEERS["n_identities"], n_attributes=PEERS["n_attributes"])
    found: dict[str, Any] = {}
    for way in ("frame", "frame_then_chain"):
        ticks.clear()
        options = model.model_dump() | {"factorisation": way, "max_iter": PEER_ITERATIONS}
        posterior = factorflow.fit(stores[0], IdentityAttribute(**options), seed=seed, on_event=on_event)
        density = posterior.one_step(dataset=stores[1])["log_density"]
        spent = {stage: np.diff(of)[3:] for stage, of in ticks.items() if len(of) > 4}
        found[way] = {
            "log_density_bound": float(density.mean()),
            "iterations": sum(map(len, ticks.values())),
            "least_seconds": {stage: float(s.min()) for stage, s in spent.items()},
            "median_seconds": {stage: float(np.median(s)) for stage, s in spent.items()},
        }
    return found


def run_dynamax(file: Path, precision: str) -> dict[str, Any]:
    """Fit the peer, in its own environment; conjugate priors, since `LinearGaussianSSM` gives nan."""
    import jax

    jax.config.update("jax_enable_x64", precision == "float64")
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm import LinearGaussianConjugateSSM

    with np.load(file) as data:
        shown, new = (jnp.asarray(data[n].reshape(-1, PEER_LENGTH, PEERS["n_features"])) for n in data.files)
    states = PEERS["n_identities"] * PEERS["n_attributes"]
    flat = np.asarray(shown).reshape(-1, PEERS["n_features"])
    _, size, vectors = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    weights = (vectors[:states] * size[:states, None] / np.sqrt(len(flat))).T
    model = LinearGaussianConjugateSSM(states, PEERS["n_features"], has_emissions_bias=True)
    params, props = model.initialize(
        jax.random.PRNGKey(0),
        dynamics_weights=0.8 * jnp.eye(states),
        dynamics_covariance=0.36 * jnp.eye(states),
        emission_weights=jnp.asarray(weights),
        emission_bias=jnp.asarray(flat.mean(axis=0)),
        emission_covariance=jnp.diag(jnp.asarray((flat - flat.mean(axis=0)).var(axis=0))) * 0.5,
    )

    @jax.jit
    def iterate(params: Any, state: Any) -> Any:
        stats, densities = jax.vmap(lambda y: model.e_step(params, y))(shown)
        params, state = model.m_step(params, props, stats, state)
        return params, state, densities.sum()

    state = model.initialize_m_step_state(params, props)
    densities, ticks = [], [time.process_time()]
    for _ in range(PEER_ITERATIONS):
        params, state, total = jax.block_until_ready(iterate(params, state))
        densities.append(float(total) / len(flat))
        ticks.append(time.process_time())
    spent = np.diff(ticks)
    kept = jax.vmap(lambda y: model.marginal_log_prob(params, y))(new)
    return {
        "log_density": float(kept.sum()) / new[..., 0].size,
        "shown_log_density": densities[-1],
        "shown_log_density_ten_iterations_before": densities[-11],
        "iterations": PEER_ITERATIONS,
        "first_seconds": float(spent[0]),
        "least_seconds": float(spent[3:].min()),
        "median_seconds": float(np.median(spent[3:])),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument(
        "--parts", nargs="+", default=["iteration", "linear", "recovery", "intervals", "peers"]
    )
    parser.add_argument("--peer-python", help="of an environment with the peer; without it, ours alone")
    parser.add_argument("--out", type=Path, help="parts that were measured before stay in it")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(run_dynamax(Path(given.worker[0]), given.worker[1])))
        return
    found: dict[str, Any] = {}
    if given.out and given.out.exists():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    found |= {"machine": platform.machine(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "iteration" in given.parts:
            found["iteration"] = iteration(folder, given.frames)
        if "linear" in given.parts:
            found["linear"] = linear(folder, given.frames)
        if "recovery" in given.parts:
            found["recovery"] = recovery(folder)
        if "intervals" in given.parts:
            found["intervals"] = intervals(folder)
        if "peers" in given.parts:
            found["peers"] = peers(folder, given.peer_python)
    text = json.dumps(found, indent=2) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
