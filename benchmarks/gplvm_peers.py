"""GP-LVM-CMF beside GPy's and GPyTorch's Bayesian GP-LVM: CPU seconds to the same held-out log-likelihood.

One thread each, all in one run::

    python -m venv peers && peers/bin/pip install -r benchmarks/requirements-gplvm.txt
    python benchmarks/gplvm_peers.py --peer-python peers/bin/python \
        [--at-most 1000] [--sets simulated] [--out benchmarks/results/gplvm_peers.json]

Two sets of Gaussian data, standardised, a fifth of the rows kept back: scikit-learn's breast cancer table
(569 x 30), and 1000 x 20 values that `factorflow.simulate("gplvm")` makes. Two latent variables, 25 inducing
points, other settings the libraries' own; GPyTorch after its tutorial (batches of 100 rows, Adam at .01,
start at the principal components), GPy by L-BFGS with the noise held for the first 100 iterations.

Every model says p(y|z) of a new row, Gaussian and independent over features (of a process its mean and
variance, q(u) integrated out). The score is the same of all: log of the integral of p(y|z) N(z|0, I) over a
grid, mean over the rows kept back, nats. Scoring is not timed. Ours are whole fits of so many steps, each
begun anew; the peers' go on from one mark to the next. ``--at-most`` leaves out marks beyond that many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np  # noqa: E402 - after the number of threads is set

Array = Any
Predict = Callable[[Array], tuple[Array, Array]]
Q, M = 2, 25
SIDE = np.linspace(-5.1, 5.1, 171)
OUR_STEPS = (250, 500, 1000, 2000, 4000)
GPY_ITERATIONS = (100, 200, 400, 800)
GPYTORCH_STEPS = (250, 500, 1000, 2000, 4000)


def marks(all_: tuple[int, ...]) -> list[int]:
    """Return the marks that are not left out."""
    limit = int(os.environ.get("AT_MOST", max(all_)))
    return [mark for mark in all_ if mark <= limit]


def score(predict: Predict, y: Array) -> float:
    """Return the mean log density of rows (nats), z integrated out over a grid."""
    from scipy.special import logsumexp

    z = np.stack(np.meshgrid(SIDE, SIDE), -1).reshape(-1, Q)
    mean, variance = predict(z)
    precision = 1.0 / variance
    prior = -0.5 * (z**2).sum(1) - np.log(2 * np.pi) + 2 * np.log(SIDE[1] - SIDE[0])
    level = prior - 0.5 * (np.log(2 * np.pi * variance) + mean**2 * precision).sum(1)
    each = [logsumexp(level + (mean * precision) @ row - 0.5 * precision @ row**2) for row in y]
    return float(np.mean(each))


def ours(train: Array, test: Array) -> Iterator[dict[str, float]]:
    """Yield CPU seconds of whole fits and what they score."""
    import factorflow
    from factorflow.models import configure
    from factorflow.models.gplvm_cmf.results import _observe

    d = train.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        data = factorflow.write_dataset(f"{folder}/d.zarr", {"y": train})
        for steps in (2, *marks(OUR_STEPS)):
            config = configure(
                {
                    "model": "gplvm_cmf", "n_factors": Q, "n_inputs": 2, "n_inducing": M, "compare_rows": 0,
                    "warmup_iter": steps // 4, "max_iter": steps - steps // 4,
                }
            )  # fmt: skip
            begun = time.process_time()
            posterior = factorflow.fit(data, config)
            seconds = time.process_time() - begun
            if steps == 2:  # what is loaded at first use
                continue
            names = posterior.tree["variational"].data_vars
            record = {name: posterior.variable(name).values for name in names}
            settings = config.build(data.meta(None)).settings

            def predict(z: Array, settings: Any = settings, record: Any = record) -> tuple[Array, Array]:
                return _observe(settings, record, settings.views[0], z)

            assert predict(test[:1, :Q])[0].shape == (1, d)
            yield {"steps": steps, "cpu_seconds": seconds, "held_out": score(predict, test)}


def gpy(train: Array, test: Array) -> Iterator[dict[str, float]]:
    """Yield CPU seconds so far and the score, at marks of the optimisation."""
    import GPy

    np.random.seed(0)  # noqa: NPY002 - what GPy draws from
    begun = time.process_time()
    model = GPy.models.BayesianGPLVM(train, Q, num_inducing=M, kernel=GPy.kern.RBF(Q, ARD=True))
    model.likelihood.variance = 0.1
    model.likelihood.fix()
    spent, done = time.process_time() - begun, 0
    for mark in marks(GPY_ITERATIONS):
        begun = time.process_time()
        model.optimize("lbfgs", max_iters=mark - done)
        if done == 0:
            model.likelihood.unfix()
        spent, done = spent + time.process_time() - begun, mark
        yield {"steps": mark, "cpu_seconds": spent, "held_out": score(_of_gpy(model), test)}


def _of_gpy(model: Any) -> Predict:
    def predict(z: Array) -> tuple[Array, Array]:
        mean, variance = model.predict(z)
        return mean, np.broadcast_to(variance, mean.shape)

    return predict


def gpytorch(train: Array, test: Array) -> Iterator[dict[str, float]]:
    """Yield CPU seconds so far and the score, at marks of the optimisation; the tutorial's model."""
    import torch
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.kernels import RBFKernel, ScaleKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.means import ZeroMean
    from gpytorch.mlls import VariationalELBO
    from gpytorch.models.gplvm.bayesian_gplvm import BayesianGPLVM
    from gpytorch.models.gplvm.latent_variable import VariationalLatentVariable
    from gpytorch.priors import NormalPrior
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    begun, (n, d) = time.process_time(), train.shape

    class Model(BayesianGPLVM):
        def __init__(self) -> None:
            shape = torch.Size([d])
            u = CholeskyVariationalDistribution(M, batch_shape=shape)
            strategy = VariationalStrategy(self, torch.randn(d, M, Q), u, learn_inducing_locations=True)
            _, _, right = np.linalg.svd(train, full_matrices=False)
            start = torch.nn.Parameter(torch.tensor(train @ right[:Q].T, dtype=torch.float32))
            prior = NormalPrior(torch.zeros(n, Q), torch.ones(n, Q))
            super().__init__(VariationalLatentVariable(n, d, Q, start, prior), strategy)
            self.mean_module = ZeroMean(ard_num_dims=Q)
            self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=Q))

        def forward(self, x: Any) -> Any:
            return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), GaussianLikelihood(batch_shape=torch.Size([d]))
    aim = VariationalELBO(likelihood, model, num_data=n)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    y, rng = torch.tensor(train, dtype=torch.float32), np.random.default_rng(0)
    spent, done = time.process_time() - begun, 0

    def predict(z: Array) -> tuple[Array, Array]:
        model.eval()
        found: list[tuple[Array, Array]] = []
        with torch.no_grad():
            for piece in np.array_split(z, len(z) // 300):
                at = likelihood(model(torch.tensor(piece, dtype=torch.float32)))
                found.append((at.mean.T.double().numpy(), at.variance.T.double().numpy()))
        model.train()
        return np.concatenate([m for m, _ in found]), np.concatenate([v for _, v in found])

    for mark in marks(GPYTORCH_STEPS):
        begun = time.process_time()
        for _ in range(mark - done):
            batch = np.sort(rng.choice(n, 100, replace=False))
            optimiser.zero_grad()
            loss = -aim(model(model.sample_latent_variable()[batch]), y[batch].T).sum()
            loss.backward()
            optimiser.step()
        spent, done = spent + time.process_time() - begun, mark
        yield {"steps": mark, "cpu_seconds": spent, "held_out": score(predict, test)}


MODELS = {"ours": ours, "GPy": gpy, "GPyTorch": gpytorch}


def sets() -> Iterator[tuple[str, Array, Array]]:
    """Yield name, rows to learn from and rows kept back, standardised by the former."""
    from sklearn.datasets import load_breast_cancer

    import factorflow

    with tempfile.TemporaryDirectory() as folder:
        world = factorflow.simulate("gplvm", f"{folder}/w", 1000, views={"y": ("gaussian", 20)}, seed=3)
        tables = {"breast cancer": load_breast_cancer().data, "simulated": world.values("y")}
    for name, table in tables.items():
        kept = np.random.default_rng(0).permutation(len(table)) < len(table) // 5
        y = table.astype(np.float64)
        y = (y - y[~kept].mean(0)) / y[~kept].std(0)
        yield name, y[~kept], y[kept]


def seconds_to(trace: list[dict[str, float]], level: float) -> float | None:
    """Return CPU seconds until a score is reached; None: it is not."""
    return next((round(at["cpu_seconds"], 2) for at in trace if at["held_out"] >= level), None)


def measured(peer_python: str | None, names: list[str], wanted: list[str]) -> dict[str, Any]:
    """Return the traces of each model on each set, and the seconds to the best score of each."""
    found: dict[str, Any] = {}
    for set_name, train, test in sets():
        if set_name not in wanted:
            continue
        traces: dict[str, list[dict[str, float]]] = {}
        for name in names:
            if name == "ours":
                traces[name] = list(ours(train, test))
            elif peer_python:
                with tempfile.TemporaryDirectory() as folder:
                    np.savez(f"{folder}/y.npz", train=train, test=test)
                    command = [peer_python, __file__, "--worker", name, f"{folder}/y.npz"]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                traces[name] = json.loads(done.stdout.splitlines()[-1])
            print(set_name, name, traces.get(name), flush=True)
        best = {name: max(at["held_out"] for at in trace) for name, trace in traces.items()}
        seconds = {
            f"to the best of {name}": {other: seconds_to(trace, level) for other, trace in traces.items()}
            for name, level in best.items()
        }
        found[set_name] = {
            "shape": list(train.shape), "kept_back": len(test), "traces": traces, "best": best,
            "cpu_seconds": seconds,
        }  # fmt: skip
    return found


def main() -> None:
    """Run the models one after the other on each set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", help="of an environment with the peers; without it, ours alone")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=["breast cancer", "simulated"])
    parser.add_argument("--at-most", type=int)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.at_most:
        os.environ["AT_MOST"] = str(given.at_most)
    if given.worker:
        data = np.load(given.worker[1])
        print(json.dumps(list(MODELS[given.worker[0]](data["train"], data["test"]))))
        return
    import torch

    found = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": [round(x, 1) for x in os.getloadavg()],
        "sets": measured(given.peer_python, given.models, given.sets),
    }
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
