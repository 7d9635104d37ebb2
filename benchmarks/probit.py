"""Probit factor models beside their peers, one thread each, all in one run.

    pip install -r benchmarks/requirements-probit.txt
    python benchmarks/probit.py [--quick] [--only trajectories,anchor,...] [--data FOLDER] [--json FILE]

- ``trajectories``: exact HMC of the truncated normal p(v, y | s = 1, x), nonnegative, against tmg_hmc;
- ``anchor``: sweeps and effective draws of held-out probabilities of a simulated 100 x 2000 set (K = 10, a
  tenth hidden) against SMURFF (normal priors, probit noise);
- ``spect``: the same of binary factors on SPECT (K = 3) against NumPyro's DiscreteHMCGibbs; needs the folder
  that holds ``binary/spect.npz`` (``--data`` or FACTORFLOW_DATA);
- ``scaling``: sweeps in T and in N;
- ``large`` (not run unless asked for): 10 million observations x 100 features x 20 factors from Zarr by two
  workers of 1 GiB.

CPU time is the process's own; figures compare within a run only. A peer that is not installed is left out.
"""

# ruff: noqa: E402  (threads are limited before anything is imported)

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from factorflow.core.block import Block, Meta, ViewMeta
from factorflow.kernels.random import Step
from factorflow.models.probit import ProbitFactors
from factorflow.models.probit.kernels.blocks import sweep_block
from factorflow.models.probit.kernels.samplers import HMC, NONNEGATIVE
from factorflow.models.probit.kernels.tables import FactorTables


def chain(config: ProbitFactors, x: Any, sweeps: int, seed: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield (factors, loadings with the offset last) after every sweep: the model without the engine."""
    meta = Meta(len(x), 1, len(x), (ViewMeta("x", "bernoulli", x.shape[1], "scattered"),))
    model = config.build(meta)
    sweep = model.stages()[0].sweeps[0]
    globals_, local = model.init(Step(seed)), None
    block = Block(0, 0, len(x), 1, {"x": np.ascontiguousarray(x)})
    for i in range(sweeps):
        step = Step(seed, 0, i)
        local, stats = sweep.map(block, local, globals_, step)
        part, sums = sweep.features("x", range(x.shape[1]), globals_, stats, step)
        globals_, _ = sweep.assemble(globals_, stats, {"x": part}, {"x": sums}, step)
        yield local.factors(config.n_factors), globals_.loadings["x"]


def ess_per_draw(chances: Any) -> float:
    """Return the median over 300 held-out entries of the effective draws a draw (M, H)."""
    from arviz_stats.base import array_stats

    measure = partial(array_stats.ess, chain_axis=0, draw_axis=1, method="mean")
    return float(np.median([measure(column[None]) for column in chances[:, :300].T])) / len(chances)


def sampled(chances: Any, truth: Any, cpu: float, window: int | None = None) -> dict[str, float]:
    """Return rates and scores of draws (M, H) of the probabilities of held-out entries.

    With a window, also the median of the effective draws over runs of so many draws.
    """
    per_draw = ess_per_draw(chances)
    p = np.clip(chances.mean(axis=0), 1e-12, 1 - 1e-12)
    extra = {}
    if window is not None:
        runs = [chances[i : i + window] for i in range(0, len(chances) - window + 1, window)]
        extra["ess_per_draw_in_windows"] = float(np.median([ess_per_draw(run) for run in runs]))
        extra["ess_per_cpu_second_in_windows"] = extra["ess_per_draw_in_windows"] * len(chances) / cpu
    return {
        **extra,
        "ms_per_sweep": 1e3 * cpu / len(chances),
        "sweeps_per_cpu_second": len(chances) / cpu,
        "median_ess_per_draw": per_draw,
        "median_ess_per_cpu_second": per_draw * len(chances) / cpu,
        "held_out_mnlp_bits": float(-np.mean(np.log2(np.where(truth == 1, p, 1 - p)))),
        "draws": len(chances),
    }


def run_ours(
    config: ProbitFactors,
    x: Any,
    hidden: Any,
    burn: int,
    draws: int,
    seed: int,
    window: int | None = None,
) -> dict[str, float]:
    """Sample with ``x`` (T, N), -1 where hidden; ``hidden`` holds rows, columns and values."""
    rows, columns, truth = hidden
    list(chain(config, x, 2))  # compiled, and caches warm
    chances, cpu = [], 0.0
    states = chain(config, x, burn + draws, seed)
    for i in range(burn + draws):
        began = time.process_time()
        f, z = next(states)
        if i >= burn:
            cpu += time.process_time() - began
            chances.append(special.ndtr((f[rows] * z[columns, :-1]).sum(axis=1) + z[columns, -1]))
    return sampled(np.array(chances), truth, cpu, window)


# Trajectories


def trajectories(quick: bool, data: Path | None) -> dict[str, Any]:
    """Draws of (v, y) given s = 1 with travel time pi / 2."""
    out: dict[str, Any] = {}
    for n_factors, n_features in ((3, 16), (10, 16), (5, 102)):
        rng = np.random.default_rng(n_factors)
        z, offset = rng.normal(size=(n_factors, n_features)), 0.5 * rng.normal(size=n_features)
        x = (rng.random(n_features) < 0.5).astype(np.int8)
        ours, mean, sd = _our_trajectories(z, offset, x, 20_000 if quick else 200_000)
        row: dict[str, Any] = {"factorflow_us_per_draw": ours}
        peer = _tmg(z, offset, x, (20 if quick else 200) if n_features > 50 else (200 if quick else 2000))
        if peer is not None:
            row |= {"tmg_hmc_us_per_draw": peer[0], "ratio": peer[0] / ours}
            row["largest_z_of_mean_v"] = float(np.abs((peer[1] - mean) / (sd * np.sqrt(10 / peer[2]))).max())
        out[f"K={n_factors}, N={n_features}"] = row
    return out


def _our_trajectories(z: Any, offset: Any, x: Any, draws: int) -> tuple[float, Any, Any]:
    rows = 200
    block = np.tile(x, (rows, 1))
    always_on = np.full(len(z), 1e300)  # odds of s = 1
    tables = FactorTables(z, offset, z @ z.T, always_on, NONNEGATIVE, HMC, np.pi / 2, 100_000)
    f = np.abs(np.random.default_rng(0).normal(size=(rows, len(z)))).astype(np.float32)
    for i in range(20):
        f, _, _ = sweep_block(block, 0, f, tables, Step(1, 0, i))
    values, began = [], time.process_time()
    for i in range(draws // rows):
        f, _, _ = sweep_block(block, 0, f, tables, Step(2, 0, i))
        values.append(f)
    spent = time.process_time() - began
    assert (f > 0).all()
    return 1e6 * spent / draws, np.mean(values, axis=(0, 1)), np.std(values, axis=(0, 1))


def _tmg(z: Any, offset: Any, x: Any, draws: int) -> tuple[float, Any, int] | None:
    """Return microseconds a draw, the mean of v and the number of draws of tmg_hmc."""
    try:
        from tmg_hmc import TMGSampler
    except ImportError:
        return None
    n_factors, n_features = z.shape
    sign = np.where(x == 0, -1.0, 1.0)
    slope = (sign * z).T
    upper = np.concatenate([np.eye(n_factors), slope])
    covariance = upper @ upper.T
    covariance[n_factors:, n_factors:] += np.eye(n_features)
    mu = np.concatenate([np.zeros(n_factors), sign * offset])
    np.random.seed(0)  # noqa: NPY002  (the generator tmg_hmc draws from)
    sampler = TMGSampler(mu, covariance, T=np.pi / 2)
    for i in range(len(mu)):
        sampler.add_constraint(f=np.eye(len(mu))[i].reshape(-1, 1), c=0.0)
    sampler.sample(np.ones(len(mu)), n_samples=1, burn_in=10)
    began = time.process_time()
    values = sampler.sample(n_samples=draws, cont=True)
    return 1e6 * (time.process_time() - began) / draws, values[:, :n_factors].mean(axis=0), draws


# The anchor set


def anchor_set() -> tuple[Any, Any]:
    """Return X (N, T) of +-1 and where it is shown: 100 x 2000, ten sparse nonnegative factors."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 10)) * (rng.random((100, 10)) < 0.5) * 1.5
    o = rng.normal(size=100) * 0.5
    f = np.abs(rng.normal(size=(10, 2000))) * (rng.random((10, 2000)) < 0.4)
    x = np.where(z @ f + o[:, None] + rng.normal(size=(100, 2000)) > 0, 1, -1)
    return x, np.random.default_rng(1).random(x.shape) < 0.9


def masked(x: Any, shown: Any) -> tuple[Any, Any]:
    """Return entries (T, N) as the model takes them, and (rows, columns, values) of the hidden ones."""
    features, rows = np.nonzero(~shown)
    entries = np.where(shown, x > 0, -1).astype(np.int8).T
    return np.ascontiguousarray(entries), (rows, features, (x[features, rows] > 0).astype(int))


def anchor(quick: bool, data: Path | None) -> dict[str, Any]:
    """Sweeps and effective draws beside SMURFF's."""
    x, shown = anchor_set()
    entries, hidden = masked(x, shown)
    burn, draws = (100, 300) if quick else (500, 2000)
    out: dict[str, Any] = {}
    peer = _smurff(x, shown, burn, draws)
    if peer is not None:
        out["smurff"] = peer
    for factors in ("spike_slab", "nonnegative", "binary"):
        config = ProbitFactors(factors=factors, n_factors=10, predictive="none", average_scores=False)
        row = run_ours(config, entries, hidden, burn, draws, seed=1)
        if peer is not None:
            row |= {
                f"ratio_{name}": row[name] / peer[name]
                for name in ("sweeps_per_cpu_second", "median_ess_per_cpu_second")
            }
        out[factors] = row
    return out


def _smurff(x: Any, shown: Any, burn: int, draws: int) -> dict[str, float] | None:
    try:
        import smurff
    except ImportError:
        return None
    import scipy.sparse as sparse

    rows, columns = np.nonzero(shown)
    train = sparse.coo_matrix((x[rows, columns].astype(float), (rows, columns)), shape=x.shape)
    where = np.argwhere(~shown)
    test = sparse.coo_matrix((x[~shown].astype(float), (where[:, 0], where[:, 1])), shape=x.shape)
    session = smurff.TrainSession(
        priors=["normal", "normal"], num_latent=10, burnin=burn, nsamples=draws, num_threads=1, seed=1,
        verbose=0,
    )  # fmt: skip  # no `threshold`: with it every step computes an AUC, and copies all draws for that
    session.setTrain(train, smurff.ProbitNoise(0.0))
    session.setTest(test)
    session.init()
    chances, cpu, truth = [], 0.0, None
    for i in range(burn + draws):
        began = time.process_time()
        session.step()
        spent = time.process_time() - began
        if i >= burn:
            cpu += spent
            found = session.getTestPredictions()
            chances.append(special.ndtr([p.pred_1sample for p in found]))
            if truth is None:
                truth = np.array([p.val > 0 for p in found]).astype(int)
    return sampled(np.array(chances), truth, cpu)


# SPECT


def spect(quick: bool, data: Path | None) -> dict[str, Any]:
    """Binary factors, K = 3, split 0, beside NumPyro's DiscreteHMCGibbs.

    The posterior has several modes, between which either sampler moves rarely. So few draws as can be had
    of the peer do not show that, so ours are measured in windows of as many draws; over our whole chain,
    which does show it, the effective draws are given besides.
    """
    if data is None or not (data / "binary" / "spect.npz").exists():
        return {"skipped": "no binary/spect.npz: give --data"}
    x = np.load(data / "binary" / "spect.npz")["data"].astype(int).T * 2 - 1
    shown = np.ones(x.size, bool)
    shown[np.random.default_rng(1000).permutation(x.size)[: x.size // 10]] = False
    entries, hidden = masked(x, shown.reshape(x.shape))
    config = ProbitFactors(factors="binary", n_factors=3, predictive="none", average_scores=False)
    burn, draws = (200, 1000) if quick else (1000, 8000)
    peer_burn, peer_draws = (10, 20) if quick else (100, 300)
    ours = run_ours(config, entries, hidden, burn, draws, seed=1, window=peer_draws)
    out: dict[str, Any] = {"factorflow": ours}
    peer = _numpyro(entries, hidden, 3, peer_burn, peer_draws)
    if peer is not None:
        out["numpyro"] = peer
        rate = peer["median_ess_per_cpu_second"]
        out["ratio_ess_per_cpu_second_in_windows"] = ours["ess_per_cpu_second_in_windows"] / rate
        out["ratio_ess_per_cpu_second_of_the_whole_chain"] = ours["median_ess_per_cpu_second"] / rate
    return out


def _numpyro(x: Any, hidden: Any, n_factors: int, burn: int, draws: int) -> dict[str, float] | None:
    try:
        import jax
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import MCMC, NUTS, DiscreteHMCGibbs
    except ImportError:
        return None
    import jax.numpy as jnp

    n_rows, n_features = x.shape
    seen, values = jnp.asarray(x >= 0), jnp.asarray(np.where(x > 0, 1, 0))

    def model() -> None:
        a = numpyro.sample("a", dist.Beta(1, 1).expand([n_factors]).to_event(1))
        b = numpyro.sample("b", dist.Beta(1, 1))
        variance = numpyro.sample("variance", dist.InverseGamma(2, 1))
        with numpyro.plate("features", n_features, dim=-2), numpyro.plate("columns", n_factors + 1, dim=-1):
            c = numpyro.sample("c", dist.Bernoulli(b))
            z = c * numpyro.sample("z", dist.Normal(0, jnp.sqrt(variance)))
        with numpyro.plate("rows", n_rows, dim=-2), numpyro.plate("factors", n_factors, dim=-1):
            s = numpyro.sample("s", dist.Bernoulli(a))
        mean = s @ z[:, :-1].T + z[:, -1]
        numpyro.deterministic("mean", mean)
        p = jnp.clip(jax.scipy.stats.norm.cdf(mean), 1e-7, 1 - 1e-7)
        numpyro.factor("entries", jnp.where(seen, dist.Bernoulli(p).log_prob(values), 0.0).sum())

    sampler = MCMC(
        DiscreteHMCGibbs(NUTS(model), modified=True), num_warmup=burn, num_samples=draws, progress_bar=False
    )
    sampler.warmup(jax.random.PRNGKey(0), collect_warmup=False)
    sampler.run(jax.random.PRNGKey(1))  # compiles the sampling loop
    began = time.process_time()
    sampler.run(jax.random.PRNGKey(2))
    mean = np.asarray(sampler.get_samples()["mean"])
    cpu = time.process_time() - began
    rows, columns, truth = hidden
    return sampled(special.ndtr(mean[:, rows, columns].astype(float)), truth, cpu)


# Scaling


def scaling(quick: bool, data: Path | None) -> dict[str, Any]:
    """Milliseconds a sweep for growing T and N, K = 10, and the slope of their logarithms."""
    out: dict[str, Any] = {}
    sizes = (1000, 2000, 4000) if quick else (1000, 4000, 16_000, 64_000)
    widths = (50, 100, 200) if quick else (50, 100, 200, 400, 800)
    cases: list[tuple[str, Any, str, tuple[tuple[int, int], ...]]] = [
        ("gibbs", None, "T", tuple((t, 100) for t in sizes)),
        ("gibbs", None, "N", tuple((1000, n) for n in widths)),
        ("hmc", "hmc", "T", tuple((t // 10, 100) for t in sizes)),
    ]
    for name, sampler, axis, shapes in cases:
        spent = []
        for n_rows, n_features in shapes:
            rng = np.random.default_rng(0)
            x = (rng.random((n_rows, n_features)) < 0.5).astype(np.int8)
            config = ProbitFactors(
                factors="spike_slab", sampler=sampler, n_factors=10, predictive="none", average_scores=False
            )
            states, times = chain(config, x, 12), []
            for _ in range(12):
                began = time.process_time()
                next(states)
                times.append(time.process_time() - began)
            spent.append(1e3 * float(np.median(times[4:])))
        grid = [shape[axis == "N"] for shape in shapes]
        slope = float(np.polyfit(np.log(grid), np.log(spent), 1)[0])
        out[f"{name} in {axis}"] = {axis: grid, "ms_per_sweep": spent, "slope": slope}
    return out


def large(quick: bool, data: Path | None) -> dict[str, Any]:
    """Ten million observations (a hundred thousand with --quick) by two workers of 1 GiB."""
    import factorflow

    n_rows = 100_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        dataset = factorflow.simulate(
            "binary", Path(folder) / "data.zarr", n_samples=n_rows, n_features=100, n_factors=20, missing=0.1
        )
        config = ProbitFactors(
            factors="spike_slab", n_factors=20, n_burn_in=1, n_draws=2, chains=1, predictive="none",
            average_scores=False,
        )  # fmt: skip
        seconds: list[float] = []

        def note(event: Any) -> None:
            if type(event).__name__ == "IterationDone":
                seconds.append(event.seconds)

        out = Path(folder) / "posterior.zarr"
        factorflow.fit(
            dataset, config, executor="dask", workers=2, memory_limit="1GiB", out=out, on_event=note
        )
        per_sweep = float(np.median(np.diff(seconds)))
        return {"rows": n_rows, "seconds_per_sweep": per_sweep, "rows_per_second": n_rows / per_sweep}


PARTS = {"trajectories": trajectories, "anchor": anchor, "spect": spect, "scaling": scaling, "large": large}


def versions() -> dict[str, str]:
    """Return the versions of what was compared."""
    found = {}
    for name in ("factorflow", "numpy", "numba", "smurff", "tmg_hmc", "numpyro", "jax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    """Run the parts and print, or write, the figures."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything works")
    parser.add_argument("--only", default="trajectories,anchor,spect,scaling", help="parts, by comma")
    parser.add_argument("--data", type=Path, default=os.environ.get("FACTORFLOW_DATA"))
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args()
    data = Path(options.data) if options.data else None
    found: dict[str, Any] = {
        "machine": {"processor": platform.processor(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "versions": versions(),
        "quick": options.quick,
    }
    for name in options.only.split(","):
        found[name] = PARTS[name](options.quick, data)
        print(name, json.dumps(found[name], indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
