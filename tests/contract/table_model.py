"""Products of categorical effects: a tiny family, written against docs/add-a-model.md.

    f_n = e_n sum_l prod_g mu_{i(n, g), l}      i(n, g): level of row n in variable g, factor 1 if missing
    gaussian   y_n ~ N(f_n, 1 / lambda)             mu_dl ~ N(0, 1 / tau_l),     lambda, tau_l ~ Gamma(1, 1)
    poisson    y_n ~ Poisson(f_n)                   mu_dl ~ Gamma(1, tau_l),     tau_l ~ Gamma(1, 1)

Mean field; Gammas are (shape, rate). One sweep a variable g, in turn, and the bound after each of them is
exact: the levels of a variable never meet in a row, so that the bound is a function of sums by level. With F,
S the products over the other variables of E mu, E mu^2, sums over the rows of level d:

    gaussian   h_dl = sum e F_l y,   C_dll' = sum e^2 F_l F_l',   Q_dl = sum e^2 S_l
               1 / v_dl = tau_l + lambda Q_dl,   m_dl = lambda v_dl (h_dl - sum_{l' != l} C_dll' m_dl')
               E sum (y - f)^2 = sum y^2 - 2 m'h + m'C m + sum_l ((m_l^2 + v_l) Q_l - m_l^2 C_ll)
    poisson    p_nl ~ prod_g exp(E log mu_l),  A_dl = sum y p_l,   B_dl = sum e F_l
               q(mu_dl) = Gamma(1 + A_dl, tau_l + B_dl)
               bound of y = sum y log e - log y! + y sum_l p_l (log prod_{g' != g} exp(E log mu_l) - log p_l)
                            + sum_dl A_dl E log mu_dl - B_dl E mu_dl

Rows without a response or an exposure are left out (predicted at exposure 1).

| symbol | field |
|---|---|
| m, v or shape, rate of mu | ``Levels.one``, ``two`` (D_g, L) |
| q(lambda), q(tau_l) | ``Globals.noise`` (2,), ``scale`` (2, L): shape and rate |
| h or A; Q or B; C | ``LevelSums.linear``, ``square`` (D_g, L), ``cross`` (D_g, L, L) |
| what follows from no level of g | ``Stats.rest``, ``n`` |
| E mu, and E mu^2 or exp(E log mu), of the levels of every row | ``Looked.first``, ``second`` (B, G, L) |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import digamma, gammaln

from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Step, Sweep, Variable, wide
from factorflow.models.registry import register

START = 0  # site of the noise


@register
class ProductTable(ModelConfig):
    """Configuration: components, and whether rows keep what they looked up."""

    model: Literal["product_table"] = "product_table"
    n_components: int = Field(default=2, ge=1, description="Components (L).")
    max_iter: int = Field(default=6, ge=1, description="Iterations at most.")
    cached: bool = Field(default=False, description="Keep the looked-up levels of every row.")

    @classmethod
    def examples(cls) -> dict[str, Example]:
        made: dict[str, Any] = {"variables": {"site": 7, "species": 5, "year": 4}, "n_components": 2}
        made |= {"exposure": True, "missing_codes": {"site": 0.1}}
        gaussian, poisson = made | {"response": "gaussian"}, made | {"response": "poisson"}
        return {
            "gaussian": Example(cls(), "table", gaussian),
            "poisson": Example(cls(cached=True), "table", poisson),
        }

    def build(self, meta: Meta) -> Products:
        values, kinds = meta.value_views, [view.likelihood for view in meta.input_views]
        if len(values) != 1 or values[0].n_features != 1 or values[0].likelihood == "bernoulli":
            raise InputError(
                "views",
                ", ".join(f"{v.name} ({v.likelihood}, {v.n_features} features)" for v in values) or "none",
                "one response: gaussian or poisson, with one feature",
                "Choose it with `views`.",
            )
        if "categorical" not in kinds or kinds.count("covariate") > 1:
            raise InputError(
                "views",
                ", ".join(kinds),
                "categorical variables, and at most one exposure",
                "Choose with `views`.",
            )
        return Products(meta, self)


@dataclass(frozen=True)
class Levels:
    one: Any
    two: Any


@dataclass(frozen=True)
class Globals:
    levels: dict[str, Levels] = field(metadata=wide())
    noise: Any
    scale: Any


@dataclass(frozen=True)
class Looked:
    first: Any
    second: Any


@dataclass(frozen=True)
class LevelSums:
    linear: Any
    square: Any
    cross: Any


@dataclass(frozen=True)
class Stats:
    levels: dict[str, LevelSums] = field(metadata=wide())
    rest: float
    n: float


@dataclass(frozen=True)
class Table:
    """What all sweeps know of the data."""

    response: str
    likelihood: str
    exposure: str | None
    variables: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.variables)

    def rows(self, block: Any) -> tuple[Any, Any]:
        """Return response and exposure, (B,), both 0 where one is missing."""
        y, e = block.data[self.response][:, 0].astype(float), self.exposures(block)
        used = ~np.isnan(y) & (e > 0)  # an unknown exposure is not
        return np.where(used, y, 0.0), np.where(used, e, 0.0)

    def exposures(self, block: Any) -> Any:
        """Return the exposure of every row, (B,): 1 where the table has none."""
        return np.ones(block.n_rows) if self.exposure is None else block.data[self.exposure][:, 0]

    def look(self, block: Any, tables: Any, old: Looked | None, which: tuple[int, ...]) -> Looked:
        """Return the levels of every row looked up: anew of some variables, of the others the old ones."""
        shape = (block.n_rows, len(self.variables), len(next(iter(tables.values()))[0][0]))
        first, second = (
            (np.array(x) for x in (old.first, old.second)) if old else (np.ones(shape), np.ones(shape))
        )
        for g in which:
            codes = block.data[self.names[g]]
            seen = codes >= 0
            for looked, table in zip((first, second), tables[self.names[g]], strict=True):
                looked[seen, g] = table[codes[seen]]
        return Looked(first, second)

    def tables(self, globals_: Globals) -> dict[str, tuple[Any, Any]]:
        """Return E mu and, gaussian, E mu^2 or, poisson, exp(E log mu) of every level."""
        pairs = {name: (levels.one, levels.two) for name, levels in globals_.levels.items()}
        if self.likelihood == "gaussian":
            return {name: (m, m**2 + v) for name, (m, v) in pairs.items()}
        return {name: (a / b, np.exp(digamma(a)) / b) for name, (a, b) in pairs.items()}


@dataclass(frozen=True)
class Update(Sweep[Globals, Looked, Stats]):
    """The levels of one variable, then the noise and the scales."""

    table: Table
    variable: int
    cached: bool
    name: ClassVar[str] = "levels"

    @property
    def axis(self) -> str:
        return self.table.names[self.variable]

    def axes(self) -> dict[str, int]:
        return dict(self.table.variables[self.variable : self.variable + 1])

    def prepare(self, globals_: Globals) -> Any:
        return self.table.tables(globals_)

    def map(self, block: Any, local: Looked | None, tables: Any, step: Step) -> tuple[Looked | None, Stats]:
        count, g = len(self.table.variables), self.variable
        # Within an iteration only the variable before this one has changed; a block may have sat out
        # before it.
        stale = (g - 1,) if local is not None and g > 0 else tuple(range(count))
        looked = self.table.look(block, tables, local, stale)
        y, e = self.table.rows(block)
        others = [i for i in range(count) if i != g]
        f, s = looked.first[:, others].prod(axis=1), looked.second[:, others].prod(axis=1)
        codes = block.data[self.axis]
        here = codes >= 0
        if self.table.likelihood == "gaussian":
            per_row = e[:, None] * f * y[:, None], (e**2)[:, None] * s, (e**2)[:, None, None] * outer(f)
            off = ~here
            rest = (y**2).sum() - 2 * (per_row[0][off]).sum() + per_row[2][off].sum()
            rest += (per_row[1] - (e**2)[:, None] * f**2)[off].sum()
        else:
            rho = s * looked.second[:, g]
            p = rho / rho.sum(axis=1, keepdims=True)
            per_row = y[:, None] * p, e[:, None] * f, np.zeros((len(y), 0, 0))
            rest = (y * np.log(np.where(e > 0, e, 1.0)) - gammaln(y + 1)).sum()
            rest += (y[:, None] * p * (np.log(s) - np.log(p))).sum() - per_row[1][~here].sum()
        sums = LevelSums(*(by_level(codes[here], x[here], self.axes()[self.axis]) for x in per_row))
        return looked if self.cached else None, Stats({self.axis: sums}, float(rest), float((e > 0).sum()))

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Levels, dict[str, Any]]:
        sums, tau = stats.levels[axis], mean(globals_.scale)
        if self.table.likelihood == "poisson":
            shape, rate = 1 + sums.linear, tau + sums.square
            fit = (sums.linear * (digamma(shape) - np.log(rate)) - sums.square * shape / rate).sum()
            return Levels(shape, rate), {"fit": fit}
        lam, m = mean(globals_.noise), np.array(globals_.levels[axis].one[index.start : index.stop])
        v = 1 / (tau + lam * sums.square)
        for l in range(m.shape[1]):  # noqa: E741
            apart = (sums.cross[:, l] * m).sum(axis=1) - sums.cross[:, l, l] * m[:, l]
            m[:, l] = lam * v[:, l] * (sums.linear[:, l] - apart)
        own = np.einsum("dll->dl", sums.cross)
        fit = -2 * (m * sums.linear).sum() + np.einsum("dl,dlk,dk->", m, sums.cross, m)
        return Levels(m, v), {"fit": fit + ((m**2 + v) * sums.square - m**2 * own).sum()}

    def assemble(
        self, globals_: Globals, stats: Stats, parts: dict[str, Levels], sums: dict[str, Any], step: Step
    ) -> tuple[Globals, dict[str, float]]:
        fit = stats.rest + sums[self.axis]["fit"]
        after = replace(globals_, levels={**globals_.levels, **parts})
        if self.table.likelihood == "gaussian":
            after = replace(after, noise=np.array([1 + stats.n / 2, 1 + max(fit, 0.0) / 2]))
        after = replace(after, scale=scales(after, self.table.likelihood))
        return after, {"objective": bound(after, fit, stats.n, self.table.likelihood), "observed": stats.n}


@dataclass(frozen=True)
class Products(Model[Globals, Looked]):
    config: ProductTable
    kind: ClassVar[Literal["variational"]] = "variational"

    @property
    def layout(self) -> Table:
        response, inputs = self.meta.value_views[0], self.meta.input_views
        exposure = next((v.name for v in inputs if v.likelihood == "covariate"), None)
        variables = tuple((v.name, v.n_features) for v in inputs if v.likelihood == "categorical")
        return Table(response.name, response.likelihood, exposure, variables)

    def stages(self) -> tuple[Stage[Globals], ...]:
        c, table = self.config, self.layout
        sweeps = tuple(Update(table, g, c.cached) for g in range(len(table.variables)))
        return (Stage("levels", sweeps, c.max_iter),)

    def init(self, step: Step) -> Globals:
        table, n, first, levels = self.layout, self.config.n_components, 0, {}
        for name, n_levels in table.variables:
            noise = step.uniform(START, first + np.arange(n_levels), n)
            one = 0.5 + noise if table.likelihood == "gaussian" else 5 * (0.5 + noise)
            levels[name] = Levels(one, np.full_like(one, 0.1 if table.likelihood == "gaussian" else 5.0))
            first += n_levels
        return Globals(levels, np.ones(2), np.ones((2, n)))

    def variables(self) -> tuple[Variable, ...]:
        table = self.layout
        found = [Variable("scale", ("factor",), "tau, mean", lambda g: mean(g.scale))]
        if table.likelihood == "gaussian":
            found.append(
                Variable("noise_variance", (), "E 1 / lambda", lambda g: g.noise[1] / (g.noise[0] - 1))
            )
        for name in table.names:
            dims = (f"feature_{name}", "factor")
            found += [
                Variable(f"loadings_{name}", dims, "mu, mean", lambda g, v=name: table.tables(g)[v][0]),
                Variable(
                    f"loadings_variance_{name}", dims, "mu, variance", lambda g, v=name: spread(table, g, v)
                ),
            ]
        if self.config.cached:
            doc = "prod_g mu, mean: what each component gives to the row, at exposure 1"
            found.append(Variable("scores", ("obs", "factor"), doc, lambda rows: rows, rows=True))
        return tuple(found)

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        return {"factor": [f"Component{i + 1}" for i in range(self.config.n_components)]}

    def prepare(self, globals_: Globals) -> Any:
        return self.layout.tables(globals_)

    def finish(self, block: Any, local: Looked | None, tables: Any, step: Step) -> Any:
        return products(self.layout, block, tables)[0]

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        table = self.layout
        pairs = {v: (record[f"loadings_{v}"], record[f"loadings_variance_{v}"]) for v in table.names}
        f, s = products(table, block, {v: (m, m**2 + x) for v, (m, x) in pairs.items()})
        e = np.nan_to_num(table.exposures(block), nan=1.0)
        average, variance = e * f.sum(axis=1), e**2 * (s - f**2).sum(axis=1)
        variance += record["noise_variance"] if table.likelihood == "gaussian" else average
        return average[:, None], np.sqrt(variance)[:, None]


def products(table: Table, block: Any, tables: Any) -> tuple[Any, Any]:
    """Return the products over all variables of both tables, (B, L) each."""
    looked = table.look(block, tables, None, tuple(range(len(table.variables))))
    return looked.first.prod(axis=1), looked.second.prod(axis=1)


def by_level(codes: Any, values: Any, n_levels: int) -> Any:
    """Return the sums of the rows of every level, in the order of the rows."""
    sums = np.zeros((n_levels, *values.shape[1:]))
    np.add.at(sums, codes, values)
    return sums


def outer(x: Any) -> Any:
    return x[:, :, None] * x[:, None, :]


def mean(gamma: Any) -> Any:
    """Return the mean of a Gamma given as (shape, rate)."""
    return gamma[0] / gamma[1]


def log_mean(gamma: Any) -> Any:
    """Return E log of a Gamma given as (shape, rate)."""
    return digamma(gamma[0]) - np.log(gamma[1])


def spread(table: Table, globals_: Globals, name: str) -> Any:
    """Return the variance of mu."""
    levels = globals_.levels[name]
    return levels.two if table.likelihood == "gaussian" else levels.one / levels.two**2


def scales(globals_: Globals, likelihood: str) -> Any:
    """Return q(tau_l), (2, L), given all levels."""
    levels = list(globals_.levels.values())
    n = sum(len(part.one) for part in levels)
    if likelihood == "gaussian":
        rate = sum((part.one**2 + part.two).sum(axis=0) for part in levels)
        return np.stack([np.full_like(rate, 1 + n / 2), 1 + rate / 2])
    rate = sum((part.one / part.two).sum(axis=0) for part in levels)
    return np.stack([np.full_like(rate, 1 + n), 1 + rate])


def bound(globals_: Globals, fit: float, n: float, likelihood: str) -> float:
    """Return the bound; ``fit``: E sum (y - f)^2, or of counts E log p(y | f)."""
    log_tau, tau = log_mean(globals_.scale), mean(globals_.scale)
    found = -gamma_divergence(globals_.scale[0], globals_.scale[1], 1.0, 0.0, 1.0).sum()
    if likelihood == "gaussian":
        noise = globals_.noise
        found += 0.5 * n * (log_mean(noise) - np.log(2 * np.pi)) - 0.5 * mean(noise) * fit
        found -= gamma_divergence(noise[0], noise[1], 1.0, 0.0, 1.0)
        for part in globals_.levels.values():
            squares = part.one**2 + part.two
            found += 0.5 * (log_tau - tau * squares + np.log(part.two) + 1).sum()
        return float(found)
    for part in globals_.levels.values():
        found -= gamma_divergence(part.one, part.two, 1.0, log_tau, tau).sum()
    return float(found + fit)


def gamma_divergence(shape: Any, rate: Any, prior: float, log_rate: Any, prior_rate: Any) -> Any:
    """Return E KL(Gamma(shape, rate) || Gamma(prior, r)) for r of these means of log r and r."""
    entropy = shape - np.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)
    log_density = prior * log_rate - gammaln(prior) + (prior - 1) * (digamma(shape) - np.log(rate))
    return -entropy - log_density + prior_rate * shape / rate
