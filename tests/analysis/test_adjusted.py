"""Associations beside other columns, of survival, and enrichment of features that move together.

The oracles are other programs: statsmodels where it is installed, SciPy, and formulas on whole matrices.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import f as f_distribution
from scipy.stats import kruskal, mannwhitneyu, rankdata, spearmanr, ttest_ind
from scipy.stats import t as student

from factorflow.analysis import associate, enrich
from factorflow.errors import InputError


@pytest.fixture
def table(given: Any) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    scores, n = given.rows["scores"], 70
    age = 40 + 10 * scores[:, 0] + 4 * rng.normal(size=n)
    age[3] = np.nan
    columns = {
        "dose": scores[:, 0] + 0.4 * age.clip(0, 99) + rng.normal(size=n),
        "arm": rng.choice(["a", "b", "c"], n),
        "years": age,
        "sex": rng.choice(["f", "m"], n),
        "patient": [f"p{i // 4}" for i in range(n)],
        "months": rng.exponential(np.exp(-scores[:, 1])) + 0.1,
        "died": rng.random(n) < 0.6,
    }
    return pd.DataFrame(columns, given.posterior.obs_names)


def _design(table: pd.DataFrame, seen: Any, blocks: bool) -> Any:
    ages = rankdata(table["years"][seen])
    parts = [np.ones(seen.sum()), ages, table["sex"].eq("m")[seen]]
    if blocks:
        parts += [table["patient"].eq(name)[seen] for name in table["patient"].unique()[1:]]
    return np.column_stack(parts).astype(float)


def _residual(design: Any, y: Any) -> Any:
    return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]


@pytest.mark.parametrize("blocks", [False, True])
def test_adjusted_associations_are_f_tests_of_ranks(given: Any, table: pd.DataFrame, blocks: bool) -> None:
    found = associate(
        given.posterior,
        ["dose", "arm"],
        table,
        adjust=["years", "sex"],
        blocks="patient" if blocks else None,
    ).set_index(["factor", "column"])
    seen = np.isfinite(table["years"].to_numpy())
    design = _design(table, seen, blocks)
    table["rare"] = table["dose"].where(np.arange(70) % 2 > 0)  # of which half of the samples have a value
    few = seen & table["rare"].notna().to_numpy()
    for_few = _design(table, few, blocks)
    rare = associate(
        given.posterior, "rare", table, adjust=["years", "sex"], blocks="patient" if blocks else None
    )
    parts = [rankdata(values[few]) for values in (given.rows["scores"][:, 0], table["rare"].to_numpy())]
    expected = np.corrcoef(*(_residual(for_few, part) for part in parts))[0, 1]
    assert rare.set_index("factor").loc["Factor1", "effect"] == pytest.approx(expected)
    arms = np.column_stack([table["arm"].eq(name)[seen] for name in "bc"]).astype(float)
    dose = rankdata(table["dose"].to_numpy()[seen])
    for k, factor in enumerate(given.posterior.factors):
        ranks = rankdata(given.rows["scores"][seen, k])
        n_free = seen.sum() - np.linalg.matrix_rank(design) - 1
        r = np.corrcoef(_residual(design, ranks), _residual(design, dose))[0, 1]
        row = found.loc[(factor, "dose")]
        assert (row["test"], row["n"]) == ("partial spearman", 69)
        assert row["effect"] == pytest.approx(r)
        t = r * np.sqrt(n_free / (1 - r**2))
        assert row["statistic"] == pytest.approx(t)
        assert row["p_value"] == pytest.approx(2 * student.sf(abs(t), n_free))
        small = (_residual(design, ranks) ** 2).sum()
        large = (_residual(np.column_stack([design, arms]), ranks) ** 2).sum()
        ratio = (small - large) / 2 / (large / (n_free - 1))
        row = found.loc[(factor, "arm")]
        assert row["test"] == "rank ancova"
        assert row["statistic"] == pytest.approx(ratio)
        assert row["effect"] == pytest.approx(1 - large / small)
        assert row["p_value"] == pytest.approx(f_distribution.sf(ratio, 2, n_free - 1))


@pytest.mark.parametrize("column", ["dose", "arm"])
def test_adjusted_associations_are_those_of_statsmodels(given: Any, table: pd.DataFrame, column: str) -> None:
    sm = pytest.importorskip("statsmodels.api")
    seen = np.isfinite(table["years"].to_numpy())
    design = _design(table, seen, blocks=True)
    if column == "dose":
        own = rankdata(table["dose"].to_numpy()[seen])[:, None]
    else:
        own = np.column_stack([table["arm"].eq(name)[seen] for name in "bc"]).astype(float)
    ranks = rankdata(given.rows["scores"][seen, 0])
    fit = sm.OLS(ranks, np.column_stack([design, own])).fit()
    expected = fit.compare_f_test(sm.OLS(ranks, design).fit())[1]
    found = associate(given.posterior, column, table, adjust=["years", "sex"], blocks="patient")
    assert found.set_index("factor").loc["Factor1", "p_value"] == pytest.approx(expected)


def test_without_columns_it_is_the_plain_correlation(given: Any, table: pd.DataFrame) -> None:
    """Of one block of all samples, the partial rank correlation is Spearman's."""
    found = associate(given.posterior, "dose", table.assign(all="x"), blocks="all").set_index("factor")
    seen = np.isfinite(table["dose"].to_numpy())
    for k, factor in enumerate(given.posterior.factors):
        expected = spearmanr(given.rows["scores"][seen, k], table["dose"].to_numpy()[seen])
        assert found.loc[factor, "effect"] == pytest.approx(expected.statistic)
        assert found.loc[factor, "p_value"] == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("absent", ["", None, np.nan])
def test_samples_of_no_block_are_left_out(given: Any, table: pd.DataFrame, absent: Any) -> None:
    table.loc[table.index[:8], "patient"] = absent
    whole = np.isfinite(table["dose"].to_numpy()[8:])
    assert set(associate(given.posterior, "dose", table, blocks="patient")["n"]) == {whole.sum()}


def test_what_is_left_out(given: Any, table: pd.DataFrame) -> None:
    """A column that is the same in every block, or that the others determine; those adjusted for."""
    same = table.assign(site=table["patient"].map(lambda name: "xyz"[int(name[1:]) % 3]))
    with pytest.warns(UserWarning, match="site"):
        found = associate(
            given.posterior, metadata=same[["dose", "site", "sex", "patient"]], adjust="sex", blocks="patient"
        )
    assert "dose" in set(found["column"])
    assert not {"site", "sex", "patient"} & set(found["column"])
    with pytest.raises(InputError, match="site"):
        associate(given.posterior, "site", same, blocks="patient")
    with pytest.raises(InputError, match=r"columns = twice: .*beside years"):
        associate(given.posterior, "twice", table.assign(twice=2 * table["years"]), adjust="years")
    with pytest.raises(InputError, match="adjust = weight"):
        associate(given.posterior, "dose", table, adjust="weight")
    with pytest.raises(InputError, match="blocks = family"):
        associate(given.posterior, "dose", table, blocks="family")


def test_a_series(given: Any, table: pd.DataFrame) -> None:
    """Beside it the columns of the dataset can be adjusted for."""
    found = associate(given.posterior, metadata=table["dose"])
    pd.testing.assert_frame_equal(found, associate(given.posterior, "dose", table))
    shuffled = table["arm"].sample(frac=1, random_state=1)
    row = associate(given.posterior, metadata=shuffled.rename(None)).set_index("factor").loc["Factor1"]
    groups = [given.rows["scores"][table["arm"].eq(name), 0] for name in "abc"]
    assert row["column"] == "value"
    assert row["p_value"] == pytest.approx(kruskal(*groups).pvalue)
    adjusted = associate(given.posterior, metadata=table["dose"], adjust="age")
    assert set(adjusted["test"]) == {"partial spearman"}
    with pytest.raises(InputError, match="metadata"):
        associate(given.posterior, metadata=[1, 2, 3])  # type: ignore[arg-type]


def _cox(time: Any, event: Any, x: Any, strata: Any) -> tuple[float, float]:
    """Return the estimate and its standard error of one covariate, by bisection of the score (no ties)."""

    def score(beta: float) -> tuple[float, float]:
        total, information = 0.0, 0.0
        for i in np.flatnonzero(event):
            risk = (time >= time[i]) & (strata == strata[i])
            weight = np.exp(beta * x[risk])
            mean = (weight @ x[risk]) / weight.sum()
            total += x[i] - mean
            information += (weight @ (x[risk] - mean) ** 2) / weight.sum()
        return total, information

    low, high = -20.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle)[0] > 0 else (low, middle)
    return low, 1 / np.sqrt(score(low)[1])


@pytest.mark.parametrize("blocks", [None, "sex"])
def test_survival(given: Any, table: pd.DataFrame, blocks: str | None) -> None:
    pytest.importorskip("statsmodels")
    found = associate(given.posterior, metadata=table, survival=("months", "died"), blocks=blocks)
    assert len(found) == 3
    strata = table["sex"].to_numpy() if blocks else np.zeros(70)
    for k, factor in enumerate(given.posterior.factors):
        x = given.rows["scores"][:, k]
        x = (x - x.mean()) / x.std()
        beta, error = _cox(table["months"].to_numpy(), table["died"].to_numpy(), x, strata)
        row = found.set_index("factor").loc[factor]
        assert (row["test"], row["column"], row["n"]) == ("cox", "months", 70)
        assert row["effect"] == pytest.approx(beta, rel=1e-4)
        assert row["statistic"] == pytest.approx(beta / error, rel=1e-4)
    assert found.iloc[0]["factor"] == "Factor2"
    both = associate(given.posterior, "dose", table, survival=("months", "died"), adjust="years")
    assert set(both["test"]) == {"cox", "partial spearman"}
    assert set(both[both["test"] == "cox"]["n"]) == {69}


def test_tied_times_follow_efron(given: Any) -> None:
    """Of d events at one time the k-th sees the risk set less k / d of those events."""
    pytest.importorskip("statsmodels")
    rng = np.random.default_rng(2)
    time, event = rng.integers(1, 6, 70), rng.random(70) < 0.7
    table = pd.DataFrame({"t": time.astype(float) + 0.5, "e": event}, given.posterior.obs_names)
    found = associate(given.posterior, metadata=table, survival=("t", "e")).set_index("factor")
    x = given.rows["scores"][:, 0]
    x = (x - x.mean()) / x.std()

    def score(beta: float) -> float:
        total, weight = 0.0, np.exp(beta * x)
        for at in np.unique(time[event]):
            died, risk = event & (time == at), time >= at
            for k in range(died.sum()):
                share = k / died.sum()
                mean = (weight[risk] @ x[risk] - share * weight[died] @ x[died]) / (
                    weight[risk].sum() - share * weight[died].sum()
                )
                total -= mean
            total += x[died].sum()
        return float(total)

    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > 0 else (low, middle)
    assert found.loc["Factor1", "effect"] == pytest.approx(low, rel=1e-4)


def test_survival_that_cannot_be_tested(
    given: Any, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="survival"):
        associate(given.posterior, metadata=table, survival="months")  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "statsmodels", None)
        with pytest.raises(InputError, match=r"statsmodels.*pip install 'factorflow\[survival\]'"):
            associate(given.posterior, metadata=table, survival=("months", "died"))
    pytest.importorskip("statsmodels")
    with pytest.raises(InputError, match="died: 'maybe'"):
        associate(given.posterior, metadata=table.assign(died="maybe"), survival=("months", "died"))
    for months in (range(-1, 69), np.arange(70.0) - 1.0):  # -1: not known, say
        with pytest.raises(InputError, match="a column of times, 0 or more"):
            associate(given.posterior, metadata=table.assign(months=months), survival=("months", "died"))
    with pytest.raises(InputError, match="0 events"):
        associate(given.posterior, metadata=table.assign(died=False), survival=("months", "died"))
    with pytest.raises(InputError, match="survival = sex"):
        associate(given.posterior, metadata=table, survival=("sex", "died"))


SETS = {"a": [f"rna {j}" for j in range(5)], "b": [f"rna {j}" for j in (0, 3, 6, 7, 8, 11)]}


def _correlations(given: Any, sign: str) -> Any:
    """Return the mean correlation of the features of each set, by factor, from the whole matrix."""
    y = given.dataset.values("rna").astype(float)
    standard = np.nan_to_num((y - np.nanmean(y, 0)) / np.nanstd(y, 0))
    found = {}
    for name, members in SETS.items():
        columns = [int(member[4:]) for member in members]
        for k in range(3):
            signs = np.sign(given.record["loadings_rna"][columns, k]) if sign == "both" else 1.0
            part = standard[:, columns] * signs
            r = part.T @ part / len(part)
            m = len(columns)
            found[name, k] = max((r.sum() / m - 1) / (m - 1), 0.0)
    return found


@pytest.mark.parametrize("sign", ["both", "positive"])
@pytest.mark.parametrize("test", ["rank", "parametric"])
def test_correlated_features(given: Any, sign: Any, test: Any) -> None:
    found = enrich(given.posterior, "rna", SETS, sign=sign, test=test, correlation_adjusted=True)
    assert found.columns[-1] == "correlation"
    plain = enrich(given.posterior, "rna", SETS, sign=sign, test=test).set_index(["factor", "set"])
    correlation = _correlations(given, sign)
    for row in found.itertuples():
        k = given.posterior.factors.index(row.factor)
        r, n = correlation[row.set, k], 12
        assert row.correlation == pytest.approx(r, abs=1e-4)
        w = given.record["loadings_rna"][:, k]
        values = np.abs(w) if sign == "both" else np.maximum(w, 0)
        inside = np.isin(np.arange(n), [int(member[4:]) for member in SETS[row.set]])
        m = inside.sum()
        if test == "rank":
            assert row.statistic == plain.loc[(row.factor, row.set), "statistic"]
        else:
            pooled = (m * values[inside].var() + (n - m) * values[~inside].var()) / (n - 2)
            spread = np.sqrt(pooled * ((1 + (m - 1) * r) / m + 1 / (n - m)))
            t = (values[inside].mean() - values[~inside].mean()) / spread
            assert row.statistic == pytest.approx(t, rel=1e-3)
            assert row.p_value == pytest.approx(student.sf(row.statistic, n - 2))


@pytest.mark.parametrize("test", ["rank", "parametric"])
def test_signs_of_weights_do_not_count_where_both_signs_do(given: Any, test: Any) -> None:
    """Nor does the correlation that a set gets: absolute loadings are the same."""
    edges = [(name, member) for name, members in SETS.items() for member in members]
    network = pd.DataFrame(edges, columns=["source", "target"])
    signed = network.assign(weight=np.where(np.arange(len(network)) % 2, -1.0, 1.0))
    plain, turned = (
        enrich(given.posterior, "rna", table, test=test, correlation_adjusted=True)
        for table in (network, signed)
    )
    pd.testing.assert_frame_equal(turned, plain)


def test_uncorrelated_features_have_the_usual_tests(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorflow.analysis.enrichment.mean_correlations", lambda *_: np.zeros((2, 3)))
    ranks = enrich(given.posterior, "rna", SETS, correlation_adjusted=True)
    means = enrich(given.posterior, "rna", SETS, correlation_adjusted=True, test="parametric")
    for table, oracle in ((ranks, "rank"), (means, "parametric")):
        for row in table.itertuples():
            values = np.abs(given.record["loadings_rna"][:, given.posterior.factors.index(row.factor)])
            inside = np.isin(np.arange(12), [int(member[4:]) for member in SETS[row.set]])
            pair = values[inside], values[~inside]
            expected = (
                mannwhitneyu(*pair, alternative="greater", method="asymptotic")
                if oracle == "rank"
                else ttest_ind(*pair, alternative="greater")
            )
            assert row.p_value == pytest.approx(expected.pvalue)


def test_the_rank_test_keeps_its_level(given: Any) -> None:
    """Of sets whose 20 of 100 statistics share a correlation of .3: the plain test rejects far too often."""
    from factorflow.analysis.enrichment import _compare_correlated

    rng, n = np.random.default_rng(0), 4000
    statistics = rng.normal(size=(100, n))
    statistics[:20] = np.sqrt(0.7) * statistics[:20] + np.sqrt(0.3) * rng.normal(size=n)
    mask = np.arange(100) < 20
    for test in ("rank", "parametric"):
        right = (_compare_correlated(statistics, mask, test, np.full(n, 0.3))[1] < 0.05).mean()
        plain = (_compare_correlated(statistics, mask, test, np.zeros(n))[1] < 0.05).mean()
        assert abs(right - 0.05) < 0.015
        assert plain > 0.2


def test_networks(given: Any) -> None:
    """As decoupler has them; a negative weight turns the loading of a feature in that set."""
    edges = [(name, member) for name, members in SETS.items() for member in members]
    network = pd.DataFrame(edges, columns=["source", "target"])
    pd.testing.assert_frame_equal(
        enrich(given.posterior, "rna", network, sign="positive"),
        enrich(given.posterior, "rna", SETS, sign="positive"),
    )
    weight = np.where(np.arange(len(network)) % 2, -0.5, 2.0)
    found = enrich(given.posterior, "rna", network.assign(weight=weight), sign="positive", min_size=5)
    for row in found.itertuples():
        w = given.record["loadings_rna"][:, given.posterior.factors.index(row.factor)].copy()
        columns = [int(member[4:]) for member in SETS[row.set]]
        w[columns] *= np.sign(weight[network["source"].to_numpy() == row.set])
        inside = np.isin(np.arange(12), columns)
        values = np.maximum(w, 0)
        expected = mannwhitneyu(values[inside], values[~inside], alternative="greater", method="asymptotic")
        assert row.p_value == pytest.approx(expected.pvalue)
    with pytest.raises(InputError, match="source and target"):
        enrich(given.posterior, "rna", network.rename(columns={"source": "tf"}))
    with pytest.raises(InputError, match="twice"):
        enrich(given.posterior, "rna", pd.concat([network, network]))
    for wrong in (None, "strong"):
        unclear = network.assign(weight=[wrong, *[1.0] * (len(network) - 1)])
        with pytest.raises(InputError, match=rf"weight {'nan|None' if wrong is None else wrong} of a, rna 0"):
            enrich(given.posterior, "rna", unclear)
    with pytest.raises(InputError, match="sets = list"):
        enrich(given.posterior, "rna", ["rna 0"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="min_size = 0"):
        enrich(given.posterior, "rna", {**SETS, "none": []}, min_size=0)


def test_members_that_are_numbers() -> None:
    """Features that are called by numbers, such as genes of Entrez, are found by these."""
    from factorflow.analysis.enrichment import _directions

    names = np.array([str(number) for number in range(7, 12)], dtype=object)
    for members in ([7, 9, 40], np.array([7, 9]), ["7", "9"], pd.Index([7, 9])):
        assert _directions({1: members}, names)["1"].tolist() == [1, 0, 1, 0, 0]
