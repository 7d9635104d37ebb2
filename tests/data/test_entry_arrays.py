"""Limits of detection and numbers of trials at ingest: what lies beside the values of a view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import factorflow
from factorflow.cli import app
from factorflow.data.aligned_dataset import AlignedDataset
from factorflow.data.ingest.append import append_rows
from factorflow.data.ingest.checks import DataWarning
from factorflow.errors import InputError

NAN = np.nan


@pytest.fixture
def values() -> np.ndarray:
    y = np.random.default_rng(0).normal(size=(40, 3))
    y[3, 1] = NAN
    return y


def beside(data: Any, what: str) -> np.ndarray:
    return np.concatenate([data.block(i, ["y"]).data[f"y/{what}"] for i in range(data.n_blocks)])


@pytest.mark.parametrize(
    "given",
    [
        (-0.5, None),
        (None, [1.0, NAN, 0.5]),
        (pd.Series({"a": -0.2, "c": -1.0}), 1.0),
        (np.linspace(-1.0, -0.2, 40)[:, None] + np.zeros(3), None),
    ],
)
def test_values_at_or_beyond_a_limit_are_told_with_their_side(
    given: Any, values: np.ndarray, tmp_path: Path
) -> None:
    data = factorflow.write_dataset(
        tmp_path / "d", {"y": values}, features={"y": ["a", "b", "c"]}, limits={"y": given}, block_rows=32
    )
    low, high = (
        np.broadcast_to(
            NAN if end is None else end.reindex(["a", "b", "c"]) if isinstance(end, pd.Series) else end,
            (40, 3),
        )
        for end in given
    )
    side = (values >= high).astype(int) - (values <= low)
    np.testing.assert_array_equal(beside(data, "censored"), side)
    expected = np.where(side < 0, low, np.where(side > 0, high, values)).astype(np.float32)
    np.testing.assert_array_equal(data.values("y"), expected)
    assert side.any()
    assert data.meta().views[0].default_likelihood == "censored"
    assert "censored" in repr(data)
    assert data.describe()["views"][0]["aux"] == "censored"
    data.verify()
    plain = factorflow.write_dataset(
        tmp_path / "p", {"y": expected}, features={"y": ["a", "b", "c"]}, block_rows=32
    )
    assert plain.fingerprint != data.fingerprint


def test_limits_on_the_command_line(
    values: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(values, columns=list("abc")).to_csv("y.csv", index=False)
    table = pd.DataFrame({"lower": [-0.3, -0.1]}, index=["a", "b"])
    table.to_csv("limits.csv")
    for text, n in (("-0.5,1", (values <= -0.5).sum() + (values >= 1).sum()), ("limits.csv", None)):
        said = ["ingest", "y.csv", "--out", "d", "--limits", f"y={text}", "--overwrite"]
        found = CliRunner().invoke(app, said)
        assert found.exit_code == 0, found.output
        side = beside(factorflow.open_dataset("d"), "censored")
        expected = n if n is not None else (values[:, 0] <= -0.3).sum() + (values[:, 1] <= -0.1).sum()
        assert np.abs(side).sum() == expected
    same = factorflow.write_dataset("e", "y.csv", limits={"y": table})
    np.testing.assert_array_equal(beside(same, "censored"), side)


def test_limits_that_are_refused(values: np.ndarray, tmp_path: Path) -> None:
    for given, message in (
        ({"y": 3.0}, "a pair of lower and upper limit"),
        ({"z": (0.0, None)}, "limits = z: expected views among y"),
        ({"y": ({"q": 1.0}, None)}, "'q': expected names of its features"),
        ({"y": "low"}, "LOWER,UPPER"),
        ({"y": pd.DataFrame({"low": [0.1]}, index=["feature0"])}, "columns lower, upper or both"),
    ):
        with pytest.raises(InputError, match=message):
            factorflow.write_dataset(tmp_path / "d", {"y": values}, limits=given)
    assert not (tmp_path / "d").exists()
    with pytest.warns(DataWarning) as warned:
        factorflow.write_dataset(tmp_path / "d", {"y": values}, limits={"y": (5.0, None)})
    few = "feature 'feature0' has 0 values within its limits (and 2 more such features)"
    assert any(few in str(one.message) for one in warned)


def test_trials_of_entries(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    n = rng.integers(0, 9, (40, 3))
    y = rng.binomial(n, 0.4).astype(float)
    names = {"samples": [f"s{i}" for i in range(40)], "features": {"y": ["a", "b", "c"]}}
    frame = pd.DataFrame(n, index=names["samples"], columns=["a", "b", "c"])  # type: ignore[arg-type]
    shuffled = frame.iloc[::-1, [2, 0, 1]]
    for given in (n, frame, shuffled):
        data = factorflow.write_dataset(
            tmp_path / "d",
            {"y": y},
            trials={"y": given},
            block_rows=32,
            overwrite=True,
            **names,  # type: ignore[arg-type]
        )
        np.testing.assert_array_equal(beside(data, "trials"), n)
        np.testing.assert_array_equal(data.values("y"), np.where(n > 0, y, NAN))
    assert data.meta().views[0].default_likelihood == "binomial"
    y[7, 2] = n[7, 2] = 3
    y[7, 2] = 4
    with pytest.raises(InputError, match=r"sample 's7', feature 'c' of view 'y' = 4 of 3 trials"):
        factorflow.write_dataset(tmp_path / "e", {"y": y}, trials={"y": n}, **names)  # type: ignore[arg-type]


def test_a_layer_has_the_trials(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(1)
    n = rng.integers(1, 9, (40, 3)).astype(float)
    read = anndata.AnnData(rng.binomial(n.astype(int), 0.4).astype(float))
    read.layers["coverage"] = n
    data = factorflow.write_dataset(tmp_path / "d", {"y": read}, trials={"y": "coverage"})
    np.testing.assert_array_equal(beside(data, "trials"), n)


def test_likelihoods_of_fits_are_kept_with_the_data(values: np.ndarray, tmp_path: Path) -> None:
    data = factorflow.write_dataset(tmp_path / "d", {"y": np.exp(values)}, {"y": "gamma"})
    assert data.views["y"].likelihood == "gaussian"
    assert str(factorflow.models.SparseGFA(n_factors=1).build(data.meta()).likelihood("y")) == "gamma"
    assert data.fingerprint != factorflow.write_dataset(tmp_path / "p", {"y": np.exp(values)}).fingerprint
    grown = append_rows(tmp_path / "d", {"y": np.exp(values[:5])})
    assert grown.n_rows == 45
    assert grown.meta().views[0].default_likelihood == "gamma"
    limited = factorflow.write_dataset(tmp_path / "l", {"y": values}, limits={"y": (-0.5, None)})
    with pytest.raises(InputError, match="limits or numbers of trials"):
        append_rows(limited.path, {"y": values[:5]})
    with pytest.raises(InputError, match="likelihood of view 'y' = gama: expected one of gaussian.*gamma"):
        factorflow.write_dataset(tmp_path / "e", {"y": values}, {"y": "gama"})


def test_likelihoods_by_feature_cut_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts have the features, names and samples of the view; what is left stays in it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.exp(rng.normal(size=(40, 4)))
    y[5, 0] = -9.0
    frame = pd.DataFrame(y, index=[f"s{i}" for i in range(40)], columns=["glucose", "crp", "age", "iron"])
    chosen = {"glucose": "gamma", "crp": "lognormal", "iron": "gamma"}
    data = factorflow.write_dataset("d", {"lab": frame}, {"lab": chosen}, na_values={"lab": [-9]})
    assert list(data.views) == ["lab", "lab_gamma", "lab_lognormal"]
    assert data.features("lab_gamma").tolist() == ["glucose", "iron"]
    assert np.isnan(data.values("lab_gamma")[5, 0])
    np.testing.assert_allclose(data.values("lab_lognormal")[:, 0], y[:, 1], rtol=1e-6)
    assert data.obs_names[3] == "s3"
    model = factorflow.models.SparseGFA(n_factors=1).build(data.meta())
    assert [str(model.likelihood(view)) for view in data.views] == ["gaussian", "gamma", "lognormal"]
    frame.to_csv("lab.csv")
    said = [text for name, of in chosen.items() for text in ("--likelihood", f"lab:{name}={of}")]
    found = CliRunner().invoke(app, ["ingest", "lab.csv", "--out", "e", *said, "--na-values", "-9"])
    assert found.exit_code == 0, found.output
    assert factorflow.open_dataset("e").fingerprint == data.fingerprint
    with pytest.raises(InputError, match="'zinc': expected names of its features"):
        factorflow.write_dataset("f", {"lab": frame}, {"lab": {"zinc": "gamma"}})
    with pytest.raises(InputError, match="Write the dataset with likelihoods by feature"):
        factorflow.models.SparseGFA(likelihoods={"lab": chosen})


def test_a_categorical_response_is_binary_features(tmp_path: Path) -> None:
    """The product of their probabilities is that of the level, of each of them."""
    labels = np.array(["I", "III", "II", None, "IV", "I"] * 5, dtype=object)
    y = np.random.default_rng(0).normal(size=(30, 3))
    data = factorflow.write_dataset(tmp_path / "d", {"y": y, "stage": labels}, {"stage": "categorical"})
    assert data.features("stage").tolist() == ["stage[II]", "stage[III]", "stage[IV]"]
    assert data.views["stage"].likelihood == "bernoulli"
    expected = {"I": [0, 0, 0], "II": [1, -1, -1], "III": [0, 1, -1], "IV": [0, 0, 1], None: [-1, -1, -1]}
    np.testing.assert_array_equal(data.values("stage"), [expected[label] for label in labels])
    p = np.array([0.3, 0.6, 0.2])
    shares = [
        np.prod(np.where(np.array(s) < 0, 1.0, np.where(np.array(s) > 0, p, 1 - p)))
        for s in expected.values()
    ]
    assert sum(shares[:4]) == pytest.approx(1.0)
    with pytest.raises(InputError, match="likelihoods = covariate.*Name it as an input"):
        factorflow.write_dataset(tmp_path / "e", {"y": y, "x": y[:, 0]}, {"x": "covariate"})
    with pytest.raises(
        InputError, match="inputs of view 'x' = gamma: expected one of categorical, covariate"
    ):
        factorflow.write_dataset(tmp_path / "e", {"y": y, "x": y[:, 0]}, inputs={"x": "gamma"})
    with pytest.raises(InputError, match="levels of view 'x' = 1: expected at least 2"):
        factorflow.write_dataset(tmp_path / "e", {"y": y, "x": np.full(30, "a")}, {"x": "categorical"})


def test_levels_of_new_samples_are_in_the_order_of_the_fit(tmp_path: Path) -> None:
    """Features of one name ask something else of levels in another order, or without the first of them."""
    y = np.random.default_rng(0).normal(size=(12, 3))

    def write(name: str, levels: list[str], **options: Any) -> factorflow.Dataset:
        stage = np.array(levels * (12 // len(levels)), dtype=object)
        return factorflow.write_dataset(
            tmp_path / name, {"y": y, "stage": stage}, {"stage": "categorical"}, **options
        )

    fitted = write("fitted", ["I", "II", "III", "IV"])
    names = {view: fitted.features(view) for view in fitted.views}

    def align(data: factorflow.Dataset) -> AlignedDataset:
        aligned = AlignedDataset(data, fitted.meta(), names)
        assert len(aligned.meta.views) == 2
        return aligned

    align(write("same", ["III", "I", "IV", "II"]))
    align(write("last", ["I", "II", "III"]))
    with pytest.warns(DataWarning, match="constant"):
        few = align(write("few", ["II", "IV", "III"], features={"stage": ["I", "II", "III", "IV"]}))
    np.testing.assert_array_equal(few.block(0).data["stage"][:3], [[1, -1, -1], [0, 0, 1], [0, 1, -1]])
    for name, levels, options in [
        ("first", ["II", "III", "IV"], {}),  # III then asks of samples that are not in stage III or IV
        ("order", ["I", "II", "III", "IV"], {"features": {"stage": ["I", "III", "II", "IV"]}}),
    ]:
        with pytest.raises(InputError, match="expected II, III, IV, as in the fitted model"):
            align(write(name, levels, **options))


@pytest.mark.parametrize("how", ["frame", "csv", "file alone", "features in rows"])
def test_signs_in_a_table_set_the_sides_of_their_entries(
    how: str, values: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a limit of its own; `limits` holds for the others."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(values, columns=["a", "b", "c"], index=[f"s{i}" for i in range(40)]).astype(object)
    frame.iloc[2, 0], frame.iloc[5, 1], frame.iloc[9, 2] = "<0.25", "> 4e1", "<=-3"
    given: Any = {"y": frame}
    options: dict[str, Any] = {"limits": {"y": (None, 1.5)}}
    if how == "features in rows":
        given, options["transpose"] = {"y": frame.T}, True
    if how in ("csv", "file alone"):
        frame.to_csv("y.CSV")
        given = "y.CSV" if how == "file alone" else {"y": "y.CSV"}
    data = factorflow.write_dataset("d", given, **options)
    side, expected = beside(data, "censored"), np.where(values >= 1.5, 1, 0)
    expected[2, 0], expected[5, 1], expected[9, 2] = -1, 1, -1
    np.testing.assert_array_equal(side, expected)
    found = data.values("y")
    assert (found[2, 0], found[9, 2]) == (0.25, -3.0)
    assert found[5, 1] == 1.5  # no further than the limit of the view
    assert np.isnan(found[3, 1])
    assert data.obs_names[2] == "s2"
    assert data.meta().views[0].default_likelihood == "censored"


TABLES = {
    "identifiers": ("id,x,y\n{rows}", {}),
    "comments": ("# of the assay\nid,x,y\n{rows}", {}),
    "names that are numbers": ("patient,x,y\n{rows}", {"index_col": "patient"}),
    "decimal commas": ("id;x;y\n{semicolons}", {}),
    "words for missing": ("id,x,y\n{rows}".replace("9.5", "lost"), {"na_values": "lost"}),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_with_signs_are_read_as_others(case: str, tmp_path: Path) -> None:
    text, options = TABLES[case]
    lines = [f"{i:03},{'<0.5' if i == 2 else i + 0.25},{i + 0.5 if i != 9 else '.'}" for i in range(12)]
    rows = "\n".join(lines) + "\n"
    semicolons = rows.replace(",", ";").replace(".\n", "NA\n").replace(".", ",")
    (tmp_path / "y.csv").write_text(text.format(rows=rows, semicolons=semicolons))
    data = factorflow.write_dataset(tmp_path / "d", {"y": tmp_path / "y.csv"}, **options)
    expected = np.column_stack([np.arange(12) + 0.25, np.arange(12) + 0.5])
    expected[2, 0], expected[9, 1] = 0.5, NAN
    np.testing.assert_array_equal(data.values("y"), expected)
    np.testing.assert_array_equal(np.argwhere(beside(data, "censored")), [[2, 0]])
    assert data.obs_names[:2].tolist() == ["000", "001"]


@pytest.mark.parametrize(
    ("text", "said"), [("id,x,x\na,<1,2\n", "names of view 'y' = 'x'"), ("id,x\na,<1\nb\n", "line 3")]
)
def test_tables_with_signs_are_checked_as_others(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        factorflow.write_dataset(tmp_path / "d", {"y": tmp_path / "y.csv"})


def test_tables_with_signs_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("id,x\na,<1\nb,2\n")
    with pytest.raises(InputError, match="line 2 = <1: .*given by its path"):
        factorflow.write_dataset(tmp_path / "d", tmp_path)


def test_signs_in_labels(tmp_path: Path) -> None:
    (tmp_path / "age.csv").write_text("id,age\ns0,<50\ns1,>50\ns2,<50\n")
    y = pd.DataFrame(np.eye(3) + 0.5, index=["s0", "s1", "s2"])
    views = {"y": y, "age": tmp_path / "age.csv"}
    data = factorflow.write_dataset(tmp_path / "d", views, inputs={"age": "categorical"})
    assert data.features("age").tolist() == ["<50", ">50"]
    lines = [f"s{i},{j},v,{i + j}.5,{'<50' if i else '>50'}\n" for i in range(2) for j in range(2)]
    (tmp_path / "long.csv").write_text("sample,feature,view,value,group\n" + "".join(lines))
    assert factorflow.write_dataset(tmp_path / "l", tmp_path / "long.csv").groups == (">50", "<50")


def test_limits_of_a_table_belong_to_its_names(tmp_path: Path, values: np.ndarray) -> None:
    (tmp_path / "limits.csv").write_text("feature;lower\n010;-0,5\n10;-1,5\n")
    options: dict[str, Any] = {"features": {"y": ["010", "NA", "10"]}}
    low = np.array([-0.5, NAN, -1.5])
    data = factorflow.write_dataset(
        tmp_path / "d", {"y": values}, limits={"y": tmp_path / "limits.csv"}, **options
    )
    np.testing.assert_array_equal(beside(data, "censored"), -(values <= low).astype(int))
    for text in ("feature,lower\n10,abc\n", "", "feature,lower\n10,1\n10,2\n"):
        (tmp_path / "limits.csv").write_text(text)
        with pytest.raises(InputError):
            factorflow.write_dataset(
                tmp_path / "e", {"y": values}, limits={"y": tmp_path / "limits.csv"}, **options
            )
    with pytest.raises(InputError, match="feature '010' of view 'y' = 1 and 0"):
        factorflow.write_dataset(tmp_path / "e", {"y": values}, limits={"y": ([1, NAN, NAN], 0)}, **options)


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame])
def test_a_limit_is_met_in_single_precision(make: Any, tmp_path: Path, values: np.ndarray) -> None:
    values[:3, 0] = 0.1, 0.7, 0.3
    y = make(values.astype(np.float32))
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, limits={"y": (0.1, 0.7)})
    assert beside(data, "censored")[:3, 0].tolist() == [-1, 1, 0]


def test_trials_that_are_no_file(tmp_path: Path) -> None:
    """The values of the view would be taken for numbers of trials."""
    with pytest.raises(InputError, match="trials of view 'y' = coverage.csv"):
        factorflow.write_dataset(tmp_path / "d", {"y": np.ones((5, 2))}, trials={"y": "coverage.csv"})


def test_limits_and_trials_of_a_view_of_several_likelihoods(tmp_path: Path) -> None:
    """They belong to the features of that likelihood; marks to the features that have them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 3)), columns=["a", "b", "c"])
    frame["b"], frame["n"] = np.exp(frame["b"]), rng.integers(0, 4, 30)

    def defaults(likelihoods: dict[str, str], values: pd.DataFrame = frame, **options: Any) -> dict[str, str]:
        data = factorflow.write_dataset(
            tmp_path / "d", {"lab": values}, likelihoods={"lab": likelihoods}, overwrite=True, **options
        )
        return {view.name: f"{view.default_likelihood} {view.aux}".strip() for view in data.meta().views}

    each = {"b": "gamma", "c": "censored", "n": "binomial"}
    of_parts = defaults(each, limits={"lab": (-0.5, None)}, trials={"lab": 3})
    assert of_parts == {
        "lab": "",
        "lab_binomial": "binomial trials",
        "lab_censored": "censored censored",
        "lab_gamma": "gamma",
    }
    assert factorflow.open_dataset(tmp_path / "d").values("lab_censored").min() == np.float32(-0.5)
    assert defaults({"b": "gamma"}, limits={"lab": (-0.5, None)})["lab"] == "censored censored"
    marked = frame.astype(object)
    marked.loc[:5, "c"] = "<-0.5"
    assert defaults({"b": "gamma", "n": "poisson"}, marked)["lab_gamma"] == "gamma"
    marked.loc[:2, "b"] = "<0.1"
    with pytest.raises(InputError, match=r"'lab_gamma' = gamma, with .* such as <0.5: expected censored"):
        defaults({"b": "gamma"}, marked)
    with pytest.raises(InputError, match="trials of view 'lab_binomial' = 4 columns: expected 1, one a feat"):
        defaults({"n": "binomial"}, trials={"lab": np.full((30, 4), 3)})


@pytest.mark.parametrize("what", ["trials", "limits", "limits by feature"])
def test_features_without_entries_are_left_out_with_what_lies_beside(tmp_path: Path, what: str) -> None:
    """Those of no trial at all are such features, too."""
    rng, names = np.random.default_rng(14400), ["x", "y", "z"]
    trials = pd.DataFrame(rng.integers(1, 6, (12, 3)), columns=names)
    counts = pd.DataFrame(rng.binomial(trials, 0.5), columns=names).astype(float)
    values = pd.DataFrame(rng.normal(size=(12, 3)), columns=names)
    trials["y"], counts["y"], values["y"] = 0, 0.0, np.nan
    given: dict[str, Any] = {"trials": {"y": trials}}
    if what != "trials":
        by_feature = pd.Series([-0.1, 0.0, -0.2], index=names)
        lower = by_feature if "feature" in what else pd.DataFrame([by_feature] * 12).reset_index(drop=True)
        given, counts = {"limits": {"y": (lower, None)}}, values
    with pytest.warns(DataWarning, match=r"1 feature without any observed value left out"):
        data = factorflow.write_dataset(tmp_path / "d", {"y": counts}, drop_empty_features=True, **given)
    assert data.features("y").tolist() == ["x", "z"]
    if what == "trials":
        np.testing.assert_array_equal(beside(data, "trials"), trials[["x", "z"]])
    else:
        np.testing.assert_allclose(data.values("y").min(axis=0), [-0.1, -0.2], atol=1e-6)


def test_entries_without_names_are_in_the_order_of_their_view(tmp_path: Path, values: np.ndarray) -> None:
    """Samples of the dataset may be in another order, and more than those of the view."""
    rng = np.random.default_rng(1)
    names = [f"s{i}" for i in range(40)]
    order = rng.permutation(40)[:30]
    first = pd.DataFrame(rng.normal(size=(40, 2)), names)
    y = pd.DataFrame(values, names, ["a", "b", "c"]).iloc[order]
    lower, trials = rng.normal(size=(40, 3)), rng.integers(5, 20, (40, 3))
    data = factorflow.write_dataset(
        tmp_path / "limits", {"x": first, "y": y}, limits={"y": (lower[order], None)}
    )
    below = np.where(values <= lower, -1, 0)
    np.testing.assert_array_equal(beside(data, "censored")[order], below[order])
    counts = pd.DataFrame(rng.integers(0, 5, (40, 3)), names, ["a", "b", "c"])
    views = {"x": first, "y": counts.iloc[order]}
    data = factorflow.write_dataset(tmp_path / "trials", views, trials={"y": trials[order]})
    np.testing.assert_array_equal(beside(data, "trials")[order], trials[order])
    with pytest.raises(InputError, match="40 rows: expected 30, one a sample of the view"):
        factorflow.write_dataset(tmp_path / "all", views, trials={"y": trials})
    table = pd.DataFrame(trials, names, ["a", "b", "c"])
    named = factorflow.write_dataset(tmp_path / "named", views, trials={"y": table.iloc[order[::-1]]})
    assert named.fingerprint == data.fingerprint
    with pytest.raises(InputError, match="expected rows for 's"):  # not: entries of no trials
        factorflow.write_dataset(tmp_path / "few", views, trials={"y": table.iloc[order[1:]]})
