"""Analyses of known posteriors: against the tests of scipy, and on permuted copies of one posterior."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import false_discovery_control, kruskal, mannwhitneyu, spearmanr, ttest_ind

import factorflow
from factorflow.analysis import associate, enrich, factor_correlation, match_factors, read_gmt
from factorflow.analysis.column_tests import is_code
from factorflow.analysis.column_tests import test_of as suitable_test
from factorflow.analysis.matching import _correlation
from factorflow.errors import InputError


def test_factor_correlation(given: Any) -> None:
    table = factor_correlation(given.posterior)
    np.testing.assert_allclose(table, np.corrcoef(given.rows["scores"], rowvar=False))
    assert list(table.index) == list(table.columns) == given.posterior.factors


def test_correlations_of_one_factor_and_of_none(given: Any) -> None:
    for k in (1, 0):
        scores = xr.DataArray(given.rows["scores"][:, :k], dims=("obs", "factor"))
        names = given.posterior.factors[:k]
        table = factor_correlation(SimpleNamespace(scores=lambda: scores, factors=names))  # noqa: B023
        assert table.shape == (k, k)
        np.testing.assert_allclose(table, np.eye(k))


@pytest.mark.thorough
def test_groups_are_tested_once(tmp_path: Path) -> None:
    """Beside the column that they were named by their own is the same test, which q-values count."""
    rng = np.random.default_rng(0)
    arm = np.repeat([2, 1], 20)
    obs = pd.DataFrame({"arm": arm, "turned": 3 - arm}, [f"s{i}" for i in range(40)])
    views = {"a": pd.DataFrame(rng.standard_normal((40, 1)) + rng.standard_normal((40, 6)), obs.index)}
    dataset = factorflow.write_dataset(tmp_path / "d", views, obs=obs, groups="arm")
    options = {"n_factors": 2, "scores": "normal"}
    posterior = factorflow.fit(dataset, factorflow.models.SparseGFA(**options), progress=False)
    assert list(posterior.sample_metadata()) == ["group", "arm", "turned"]
    found = associate(posterior)
    assert set(found["column"]) == {"arm", "turned"}
    assert "group" in set(associate(posterior, ["group", "arm"])["column"])
    assert "group" in set(associate(posterior, posterior.sample_metadata())["column"])
    dose = pd.DataFrame({"dose": arm + 0.5}, obs.index)  # a number, whose test is another one
    dataset = factorflow.write_dataset(tmp_path / "e", views, obs=dose, groups=list(arm.astype(str)))
    posterior = factorflow.fit(dataset, factorflow.models.SparseGFA(**options), progress=False)
    assert set(associate(posterior)["column"]) == {"group", "dose"}


def test_associations(given: Any) -> None:
    table = associate(given.posterior)
    assert set(table["column"]) == {"group", "age", "sex"}
    assert len(table) == 9
    top = table.iloc[0]
    assert (top["factor"], top["column"], top["test"]) == ("Factor1", "age", "spearman")
    assert top["effect"] == pytest.approx(1.0)
    np.testing.assert_allclose(
        table["q_value"], false_discovery_control(table["p_value"].to_numpy()), rtol=1e-12
    )
    scores = given.rows["scores"]
    row = table[(table["factor"] == "Factor2") & (table["column"] == "sex")].iloc[0]
    expected = kruskal(scores[::2, 1], scores[1::2, 1])
    assert row["p_value"] == pytest.approx(expected.pvalue)
    row = table[(table["factor"] == "Factor3") & (table["column"] == "age")].iloc[0]
    assert row["p_value"] == pytest.approx(spearmanr(scores[:, 2], scores[:, 0]).pvalue)


def test_associations_with_ones_own_table(given: Any) -> None:
    names = given.posterior.obs_names
    weight = pd.DataFrame({"weight": given.rows["scores"][:, 1]}, index=names).iloc[::-1].iloc[10:]
    table = associate(given.posterior, metadata=weight)
    assert table.iloc[0]["factor"] == "Factor2"
    assert table.iloc[0]["n"] == 60  # ten samples have no weight
    for alone in (weight, weight["weight"]):  # in the place of the columns, which it then has
        pd.testing.assert_frame_equal(associate(given.posterior, alone), table)
    with pytest.raises(InputError, match="one table"):
        associate(given.posterior, weight, weight)
    assert table.iloc[0]["effect"] == pytest.approx(1.0)


def test_dates_and_durations_are_numbers(given: Any) -> None:
    """Also as text, as which datasets keep them; entries may be missing, and what is no date is none."""
    names, scores = given.posterior.obs_names, given.rows["scores"][:, 1]
    days = np.argsort(np.argsort(scores)).astype(float)
    stay = pd.Series(pd.to_timedelta(days, "h"), index=names)
    born = pd.Timestamp("1950-03-01") + pd.Series(pd.to_timedelta(days, "D"), index=names)
    born.iloc[:5] = pd.NaT
    table = pd.DataFrame({"born": born, "stay": stay})
    text = table.astype(str).replace("NaT", "")
    for metadata in (table, text, text.astype(object)):
        found = associate(given.posterior, metadata=metadata).set_index(["factor", "column"])
        for column, n in (("born", 65), ("stay", 70)):
            row = found.loc[("Factor2", column)]
            assert (row["test"], row["n"]) == ("spearman", n)
            assert row["effect"] == pytest.approx(1.0)
    wrong = text.assign(born=["2020-13-45", "2020-13-46"] * 35)
    assert set(associate(given.posterior, ["born"], wrong)["test"]) == {"kruskal-wallis"}


@pytest.mark.parametrize("dtype", ["int8", "Int8", "int16", "float32", object])
def test_numbers_are_the_same_in_every_type(given: Any, dtype: Any) -> None:
    """Narrow integers do not overflow, and numbers among objects are no categories."""
    scores = given.rows["scores"][:, 1]
    values = np.linspace(-120, 120, 30).round()[np.argsort(np.argsort(scores)) * 30 // 70]
    column = pd.Series(values.astype(int), given.posterior.obs_names, name="change").astype(dtype)
    row = associate(given.posterior, column).set_index("factor").loc["Factor2"]
    assert row["test"] == "spearman"
    assert row["effect"] == pytest.approx(spearmanr(scores, values).statistic)


@pytest.mark.parametrize("values", [np.arange(12.0) / 7.0, np.array(list("ab" * 6), dtype=object)])
def test_scores_that_do_not_vary_go_with_nothing(values: Any) -> None:
    """Corrections over all tests take no p-value that is missing."""
    row = suitable_test(values)(np.zeros(12))
    assert np.isnan(row["statistic"])
    assert row["p_value"] == 1.0


def test_whole_numbers_of_few_samples_are_numbers() -> None:
    """Ages of a dozen patients are no codes: there are no three of each."""
    assert not is_code(np.array([54, 58, 60, 60, 61, 63, 64, 66, 66, 70, 71, 75]))
    assert is_code(np.array([1, 2, 3, 4] * 3))
    assert is_code(np.array([1.0, 2.0] * 10 + [3.0, np.nan]))  # a rare one
    assert not is_code(np.array([0.5, 1.0] * 6))
    assert not is_code(np.arange(60))


def test_columns_that_are_left_out_are_named(given: Any) -> None:
    names = given.posterior.obs_names
    odd = pd.DataFrame({"id": [f"x{i}" for i in range(70)], "same": 1.0, "n": np.arange(70)}, index=names)
    with pytest.warns(UserWarning, match="columns not tested: 'id', 'same'"):
        table = associate(given.posterior, metadata=odd)
    assert table.attrs["not_tested"] == ["id", "same"]
    assert set(table["column"]) == {"n"}


def test_columns_are_tested_once(given: Any) -> None:
    """A column that is named twice is one; two of one name are refused, not the second passed over."""
    once = associate(given.posterior, ["age", "sex"])
    pd.testing.assert_frame_equal(associate(given.posterior, ["age", "sex", "age"]), once)
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(70, 2)), given.posterior.obs_names, ["x", "x"])
    with pytest.raises(InputError, match="metadata = two columns x: expected every column once"):
        associate(given.posterior, metadata=table)


def test_the_last_run_as_reference_is_not_matched_with_itself(given: Any, make_given: Any) -> None:
    posteriors = [given.posterior, make_given().posterior]
    assert match_factors(posteriors, reference=np.int64(1)).table["run"].unique().tolist() == [0]
    for wrong in (-1, 2, "1", None, True):
        with pytest.raises(InputError, match="reference"):
            match_factors(posteriors, reference=wrong)


def test_a_table_of_other_samples_is_refused(given: Any) -> None:
    n = len(given.posterior.obs_names)
    for index, message in (
        ([f"other{i}" for i in range(n)], "rows such as other0: expected names of samples"),
        ([*given.posterior.obs_names[:-1], given.posterior.obs_names[0]], "every sample once"),
        (range(n), "rows such as 0: expected names of samples"),
    ):
        with pytest.raises(InputError, match=message):
            associate(given.posterior, metadata=pd.DataFrame({"x": np.arange(float(n))}, index=index))


def runs(path: Path, seeds: Any, named: bool = False, width: int = 8) -> list[Any]:
    """Return fits of different samples, with names or numbered."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(40, 2)) @ np.random.default_rng(9).normal(size=(2, 8))
        values = (values + 0.3 * rng.normal(size=(40, 8)))[:, : width - seed]
        names = [f"s{i}" for i in range(40)] if named else None
        data = factorflow.write_dataset(path / f"{seed}{named}", {"x": values}, samples=names)
        model = factorflow.models.SparseGFA(n_factors=2, max_iter=20, warmup_iter=5)
        found.append(factorflow.fit(data, model, progress=False))
    return found


def test_metadata_of_samples_that_are_dates(tmp_path: Path) -> None:
    days = pd.date_range("2020-01-01", periods=40)
    data = factorflow.write_dataset(
        tmp_path / "d", {"x": pd.DataFrame(np.random.default_rng(0).normal(size=(40, 4)), days)}
    )
    model = factorflow.models.SparseGFA(n_factors=1, max_iter=5, drop=0)
    posterior = factorflow.fit(data, model, progress=False)
    scores = pd.DataFrame({"x": posterior.scores().values[:, 0]}, days).iloc[::-1]
    assert associate(posterior, metadata=scores).iloc[0]["effect"] == pytest.approx(1.0)


@pytest.mark.thorough
def test_numbered_samples_of_different_datasets_are_not_the_same(tmp_path: Path) -> None:
    first, other = runs(tmp_path, (0, 1))
    with pytest.warns(UserWarning, match="without names are matched by their position"):
        match_factors([first, other])
    few = factorflow.write_dataset(tmp_path / "few", {"x": first.dataset.values("x")[:30]})
    fewer = factorflow.fit(few, first.config, progress=False)
    with pytest.raises(InputError, match="names of the samples: the runs are of different datasets"):
        match_factors([first, fewer])
    with pytest.raises(InputError, match="8 and 7 features of view x without names"):
        match_factors([first, other], by="loadings")
    again = factorflow.fit(first.dataset, first.config, seed=3, progress=False)
    np.testing.assert_allclose(match_factors([first, again]).stability, 1.0, atol=1e-3)
    table = pd.DataFrame({"x": first.scores().values[:, 0]})
    assert associate(first, metadata=table).iloc[0]["effect"] == pytest.approx(1.0)  # by position
    with pytest.raises(InputError, match="40 rows, one for every sample"):
        associate(first, metadata=table[:30])
    with pytest.raises(InputError, match="rows such as 9"):  # not the first ones
        associate(first, metadata=table.set_axis(range(9, 49)))
    named = runs(tmp_path, (0,), named=True)
    assert len(match_factors([*named, *named]).table) == 2


def test_columns_that_cannot_be_tested(given: Any) -> None:
    names = given.posterior.obs_names
    odd = pd.DataFrame({"id": [f"x{i}" for i in range(70)], "same": 1.0}, index=names)
    with pytest.raises(InputError, match="columns"):
        associate(given.posterior, ["id"], odd)
    with pytest.raises(InputError, match="metadata"):
        associate(given.posterior, metadata=odd)
    repeated = [f"x{i}" for i in range(40)] + ["y", "z"] * 15
    with pytest.raises(InputError, match="id"):  # mostly names, though two of them come often enough
        associate(given.posterior, ["id"], odd.assign(id=repeated))
    with pytest.raises(InputError, match="height"):
        associate(given.posterior, ["height"])


@pytest.mark.parametrize("by", ["scores", "loadings"])
def test_matching_finds_a_permutation(given: Any, make_given: Any, by: Any) -> None:
    other = make_given()
    order, sign = [2, 0, 1], np.array([1.0, -1.0, 1.0])
    group = other.posterior.tree["variational"]
    for name in ("scores", "loadings_rna", "loadings_mutation"):
        group[name].values[:] = group[name].values[:, order] * sign
    matching = match_factors([given.posterior, other.posterior], by=by)
    expected = {"Factor1": ("Factor2", -1.0), "Factor2": ("Factor3", 1.0), "Factor3": ("Factor1", 1.0)}
    for row in matching.table.itertuples():
        assert row.factor == expected[row.reference][0]
        assert row.correlation == pytest.approx(expected[row.reference][1])
    np.testing.assert_allclose(matching.stability, 1.0)
    assert list(matching.stability.index) == given.posterior.factors


def test_runs_are_matched_by_the_names_of_samples() -> None:
    rng = np.random.default_rng(0)
    one = pd.DataFrame(rng.normal(size=(20, 2)), index=[f"s{i}" for i in range(20)])
    other = one.iloc[rng.permutation(20)[:15]] * [-1.0, 1.0]
    np.testing.assert_allclose(np.diag(_correlation(one, other)), [-1.0, 1.0])


def test_matching_runs_with_fewer_factors(given: Any, make_given: Any) -> None:
    fewer = make_given(n_factors=2)
    matching = match_factors([given.posterior, fewer.posterior])
    lonely = matching.table[matching.table["factor"].isna()]
    assert len(lonely) == 1
    assert matching.stability[lonely.iloc[0]["reference"]] == 0.0
    with pytest.raises(InputError, match="posteriors"):
        match_factors([given.posterior])


def test_gmt(tmp_path: Path) -> None:
    file = tmp_path / "sets.gmt"
    file.write_text("A\tdescription\tg1\tg2\n\nB\t\tg3\tg4\t\n")
    assert read_gmt(file) == {"A": ["g1", "g2"], "B": ["g3", "g4"]}
    file.write_text("A\td\tg1 \t g2\r\nB\td\tg3\r\n", encoding="utf-8-sig")  # as spreadsheets save it
    assert read_gmt(file) == {"A": ["g1", "g2"], "B": ["g3"]}
    file.write_text("A\tdescription\n")
    with pytest.raises(InputError, match="line 1"):
        read_gmt(file)
    file.write_text("A\td\tg\nA\td\tg\n")
    with pytest.raises(InputError, match="line 2"):
        read_gmt(file)
    with pytest.raises(InputError, match="gmt"):
        read_gmt(tmp_path / "none.gmt")


@pytest.mark.parametrize("test", ["rank", "parametric"])
@pytest.mark.parametrize("sign", ["both", "positive", "negative"])
def test_enrichment(given: Any, test: Any, sign: Any) -> None:
    loadings = given.record["loadings_rna"]
    strongest = np.argsort(-np.abs(loadings[:, 0]))[:4]
    sets = {
        "strong": [f"rna {j}" for j in strongest] + ["unknown"],
        "first": [f"rna {j}" for j in range(4)],
        "small": ["rna 0"],
    }
    table = enrich(given.posterior, "rna", sets, sign=sign, test=test, min_size=3)
    assert set(table["set"]) == {"strong", "first"}
    assert list(table["factor"].unique()) == given.posterior.factors
    inside = np.isin(np.arange(12), strongest)
    values = {
        "both": np.abs(loadings),
        "positive": np.maximum(loadings, 0),
        "negative": np.maximum(-loadings, 0),
    }[sign]
    row = table[(table["factor"] == "Factor1") & (table["set"] == "strong")].iloc[0]
    assert row["size"] == 4
    if test == "rank":
        expected = mannwhitneyu(
            values[inside, 0], values[~inside, 0], alternative="greater", method="asymptotic"
        )
    else:
        expected = ttest_ind(values[inside, 0], values[~inside, 0], equal_var=False, alternative="greater")
    assert row["p_value"] == pytest.approx(expected.pvalue)
    if sign == "both":
        assert row["p_value"] < 0.05
    mine = table[table["factor"] == "Factor1"]
    np.testing.assert_allclose(mine["q_value"], false_discovery_control(mine["p_value"].to_numpy()))


def test_enrichment_from_a_file_and_refusals(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "sets.gmt"
    file.write_text("A\t\t" + "\t".join(f"rna {j}" for j in range(6)) + "\n")
    assert len(enrich(given.posterior, "rna", file)) == 3
    assert len(enrich(given.posterior, "rna", file, factors=["Factor2"])) == 1
    with pytest.raises(InputError, match="sets"):
        enrich(given.posterior, "mutation", file)
    with pytest.raises(InputError, match="sign"):
        enrich(given.posterior, "rna", file, sign="up")  # type: ignore[arg-type]


def test_whole_numbers_with_few_values_are_categories(given: Any) -> None:
    rng = np.random.default_rng(0)
    codes = pd.DataFrame({"digit": rng.integers(0, 5, 70)}, index=given.posterior.obs_names)
    table = associate(given.posterior, metadata=codes)
    assert set(table["test"]) == {"kruskal-wallis"}
    digits = codes["digit"].to_numpy()
    row = table[table["factor"] == "Factor2"].iloc[0]
    expected = kruskal(*[given.rows["scores"][digits == d, 1] for d in range(5)])
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert row["effect"] == pytest.approx(expected.statistic / 69)
    holes = codes.mask(pd.Series(np.arange(70) % 4 == 0, codes.index))  # which are no category
    for column in (holes["digit"], holes["digit"].astype("Int64"), holes["digit"].astype(object)):
        table = associate(given.posterior, metadata=column)
        row = table[table["factor"] == "Factor2"].iloc[0]
        seen = holes["digit"].notna().to_numpy()
        groups = [given.rows["scores"][seen & (digits == d), 1] for d in range(5)]
        assert row["n"] == seen.sum() == 52
        assert row["p_value"] == pytest.approx(kruskal(*groups).pvalue)


def test_numbers_of_associations(given: Any) -> None:
    """Statistic, effect and n, with missing values and categories of fewer than three samples left out."""
    rng = np.random.default_rng(3)
    scores, names = given.rows["scores"], given.posterior.obs_names
    weight = scores[:, 1] + rng.normal(size=70)
    weight[::7] = np.nan
    site = rng.choice(["x", "y", "z"], 70).astype(object)
    site[:2], site[2:6] = "rare", None
    table = associate(given.posterior, metadata=pd.DataFrame({"weight": weight, "site": site}, index=names))
    for k, factor in enumerate(given.posterior.factors):
        rows = table[table["factor"] == factor].set_index("column")
        seen = np.isfinite(weight)
        expected = spearmanr(scores[seen, k], weight[seen])
        assert rows.loc["weight", "n"] == seen.sum() == 60
        assert rows.loc["weight", "effect"] == rows.loc["weight", "statistic"]
        assert rows.loc["weight", "statistic"] == pytest.approx(expected.statistic)
        assert rows.loc["weight", "p_value"] == pytest.approx(expected.pvalue)
        groups = [scores[site == level, k] for level in "xyz"]
        found = kruskal(*groups)
        assert rows.loc["site", "n"] == 64
        assert rows.loc["site", "statistic"] == pytest.approx(found.statistic)
        assert rows.loc["site", "effect"] == pytest.approx(found.statistic / 63)
        assert rows.loc["site", "p_value"] == pytest.approx(found.pvalue)
    assert (np.diff(table["p_value"]) >= 0).all()


def test_which_numbers_are_categories(given: Any) -> None:
    """Up to twelve distinct whole numbers; anything else is a number."""
    names = given.posterior.obs_names
    few, many = np.arange(70) % 12, np.arange(70) % 13
    columns = pd.DataFrame({"few": few, "many": many, "halves": few / 2}, index=names)
    tests = associate(given.posterior, metadata=columns).groupby("column")["test"].first()
    assert tests.to_dict() == {"few": "kruskal-wallis", "many": "spearman", "halves": "spearman"}


def test_statistics_of_enrichment(given: Any) -> None:
    loadings = given.record["loadings_rna"]
    sets = {"a": [f"rna {j}" for j in range(5)], "b": [f"rna {j}" for j in range(4, 12)]}
    ranks = enrich(given.posterior, "rna", sets, sign="negative", min_size=5)
    means = enrich(given.posterior, "rna", sets, test="parametric", min_size=6)
    assert set(ranks["set"]) == {"a", "b"}
    assert set(means["set"]) == {"b"}
    for k, factor in enumerate(given.posterior.factors):
        values, sizes = np.maximum(-loadings[:, k], 0), np.abs(loadings[:, k])
        rows = ranks[ranks["factor"] == factor].set_index("set")
        for name, inside in (("a", np.arange(12) < 5), ("b", np.arange(12) >= 4)):
            expected = mannwhitneyu(
                values[inside], values[~inside], alternative="greater", method="asymptotic"
            )
            assert rows.loc[name, "statistic"] == expected.statistic
            assert rows.loc[name, "p_value"] == pytest.approx(expected.pvalue)
        row = means[means["factor"] == factor].iloc[0]
        expected = ttest_ind(sizes[4:], sizes[:4], equal_var=False, alternative="greater")
        assert row["statistic"] == pytest.approx(expected.statistic)
        assert row["p_value"] == pytest.approx(expected.pvalue)
        mine = rows.sort_values("p_value")["p_value"].to_numpy()
        np.testing.assert_allclose(ranks[ranks["factor"] == factor]["p_value"], mine)
    with pytest.raises(InputError, match="sets"):
        enrich(given.posterior, "rna", {"all": list(given.posterior.features("rna"))})


def test_matching_by_loadings_counts_views_alike(given: Any, make_given: Any) -> None:
    """A view in other units does not decide: correlations are over features of views scaled to one size."""
    other = make_given(seed=5)
    for posterior in (given.posterior, other.posterior):
        posterior.tree["variational"]["loadings_mutation"].values[...] *= 1000.0
    table = match_factors([given.posterior, other.posterior], by="loadings").table
    parts = []
    for made in (given, other):
        stacked = [made.record["loadings_rna"], 1000.0 * made.record["loadings_mutation"]]
        parts.append(np.concatenate([w / np.sqrt((w**2).mean()) for w in stacked]))
    k = parts[0].shape[1]
    correlation = np.corrcoef(parts[0].T, parts[1].T)[:k, k:]
    for row in table.itertuples():
        i, j = (given.posterior.factors.index(name) for name in (row.reference, row.factor))
        assert row.correlation == pytest.approx(correlation[i, j])


def test_a_run_without_factors_is_matched_with_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in range(60)]
    noise = factorflow.write_dataset(tmp_path / "noise.zarr", {"x": rng.normal(size=(60, 8))}, samples=names)
    signal = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(60, 8))
    data = factorflow.write_dataset(tmp_path / "data.zarr", {"x": signal}, samples=names)
    empty, full = (factorflow.fit(d, {"model": "sparse_gfa", "n_factors": 3}) for d in (noise, data))
    assert empty.factors == []
    shares = empty.variance_explained(by="sample")
    assert shares.shape == (60, 1, 0)
    assert np.isfinite(empty.variance_explained_total(by="sample")).all()
    for by in ("scores", "loadings"):
        assert len(match_factors([empty, full], by=by).table) == 0
        found = match_factors([full, empty], by=by)
        assert found.table["factor"].tolist() == [None] * len(full.factors)
        assert (found.stability == 0.0).all()
