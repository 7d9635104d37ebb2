"""States of a few rows, drawn at random, with every parameter off its symmetric point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factorflow.kernels.random import Step
from factorflow.models import configure
from factorflow.models.contract import Block, Meta, ViewMeta
from factorflow.models.gplvm_cmf import decoders
from factorflow.models.gplvm_cmf.rows import noise_of, pack_diagonal
from factorflow.models.gplvm_cmf.start import START_LENGTH, START_LENGTH_GIVEN, _initial_process
from factorflow.models.gplvm_cmf.state import Globals, Local, Standardisation, initial_moments

N, D, Q, R, M, H = 14, {"a": 5, "b": 6}, 2, 2, 4, 3
KINDS = {"a": "gaussian", "b": "bernoulli"}

VARIANTS = {
    "point": {},
    "point, diagonal": {"q_x": "diagonal"},
    "point, mlp": {"r_x": "mlp"},
    "free": {"q_u": "free"},
    "prior, mlp": {"q_u": "prior", "r_x": "mlp"},
    "free, product": {"q_u": "free", "bound": "product"},
    "point, product": {"bound": "product"},
    "given": {"given": ["x"]},
    "given, free": {"given": ["x"], "q_u": "free"},
    "mean field": {"coupling": "mean_field"},
    "full": {"coupling": "full"},
}


class Tools:
    """Makes settings, rows and parameters."""

    variants = VARIANTS

    def settings(self, n_rows: int = N, **options: Any) -> Any:
        views = [ViewMeta(name, KINDS[name], d, "scattered") for name, d in D.items()]
        views += [ViewMeta("x", "covariate", R, "none")] if options.get("given") else []
        meta = Meta(n_rows, 1, max(32, n_rows), tuple(views))
        small = {"n_factors": Q, "n_inputs": R, "n_inducing": M, "hidden": H}
        return configure({"model": "gplvm_cmf", **small, **options}).build(meta).settings

    def block(self, n_rows: int = N, seed: int = 1) -> Block:
        rng = np.random.default_rng(seed)
        a = rng.normal(2.0, 3.0, (n_rows, D["a"])).astype(np.float32)
        b = rng.integers(0, 2, (n_rows, D["b"])).astype(np.int8)
        a[rng.random(a.shape) < 0.1], b[rng.random(b.shape) < 0.1] = np.nan, -1
        return Block(0, 0, n_rows, 1, {"a": a, "b": b, "x": rng.normal(size=(n_rows, R))})

    def state(self, settings: Any, n_rows: int = N, seed: int = 2) -> tuple[Globals, Local | None]:
        rng, step = np.random.default_rng(seed), Step(5)
        location = {"a": rng.normal(2.0, 0.3, D["a"]), "b": np.full(D["b"], 0.5), "x": np.zeros(R)}
        scale = {name: np.full(len(v), 1.0 if name == "x" else 2.5) for name, v in location.items()}
        values: dict[str, Any] = {}
        for view in settings.views:
            units, heads = rng.normal(size=(Q, H)), rng.normal(size=(view.n_features, H))
            values |= decoders.start(settings, view, units, heads, location[view.name])
        if settings.coupling == "gp":
            values |= _initial_process(settings, rng.normal(size=(M, R)), step)
        values = {k: v + 0.3 * rng.normal(size=np.shape(v)) for k, v in values.items()}
        if "log_length" in values and not settings.given:
            # lengths at which the map bends, and what neglects that is seen; runs begin with longer ones
            values["log_length"] = values["log_length"] + np.log(START_LENGTH_GIVEN / START_LENGTH)
        if "log_noise" in values:
            values["log_noise"] = values["log_noise"] + 2.0
        fixed = Standardisation(location, scale, {}, np.eye(Q, R), np.zeros(Q))
        globals_ = Globals(values, initial_moments(values), initial_moments(values), fixed)
        return globals_, self.local(settings, rng, n_rows)

    def local(self, settings: Any, rng: Any, n_rows: int) -> Local | None:
        mean, log_sd = rng.normal(size=(n_rows, Q)), rng.normal(-0.7, 0.2, (n_rows, Q))
        if settings.coupling == "gp":
            if settings.given:
                return None
            arrays = {"inputs": mean[:, :R]}
            if settings.q_x == "diagonal":
                arrays["log_spread"] = log_sd[:, :R] - 0.5
            else:
                arrays["spread"] = self.packed(rng, log_sd[:, :R] - 0.5)
        elif settings.coupling == "full":
            arrays = {"mean": mean, "factor": self.packed(rng, log_sd)}
        else:
            arrays = {"mean": mean, "log_sd": log_sd}
        return Local(arrays, initial_moments(arrays), initial_moments(arrays), np.zeros(n_rows))

    def packed(self, rng: Any, log_diagonal: Any) -> Any:
        """Return Cholesky factors with something off the diagonal, packed."""
        q = log_diagonal.shape[1]
        return pack_diagonal(log_diagonal) + 0.2 * rng.normal(size=(len(log_diagonal), q * (q + 1) // 2))

    def noise(self, settings: Any, block: Block, n_draws: int, seed: int = 3) -> Any:
        return noise_of(settings, settings.coupling, block, Step(seed), n_draws)

    def bound(
        self, settings: Any, block: Block, globals_: Globals, local: Any, noise: Any
    ) -> tuple[Any, float]:
        """Return the bound of each row, and what G and h add."""
        from factorflow.models.gplvm_cmf.autodiff import passes
        from factorflow.models.gplvm_cmf.steps import pass_inputs

        about = pass_inputs(settings, settings.coupling, block, local, globals_)
        rows, gram, shift = passes.evaluate(about, noise)
        if gram is None:
            return rows, 0.0
        return rows, passes.cotangents(settings, globals_.values, noise, gram, shift).bound

    def changed(self, globals_: Globals, **values: Any) -> Globals:
        return replace(globals_, values={**globals_.values, **values})


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools()
