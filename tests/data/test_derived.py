"""Views that are computed from counts: values, missing entries, moments; nothing of them is on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow import add_view, open_dataset, write_dataset
from factorflow.data import Holdout
from factorflow.engine.memory_limits import Footprint, required_bytes
from factorflow.errors import InputError, OptionError
from factorflow.models import SparseGFA

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

N, D = 120, 30


def counts() -> np.ndarray:
    rng = np.random.default_rng(0)
    values = rng.poisson(rng.gamma(0.3, 1.0, (N, 1)) * rng.gamma(0.5, 1.0, D)).astype(np.float64)
    values[7] = 0
    values[[20, 119]] = np.nan
    values[60:, :4] = np.nan
    values[50, :] = 1.0
    return values


def expected(transform: str, y: np.ndarray) -> np.ndarray:
    total = np.nansum(y, axis=1, keepdims=True)
    if transform == "binarize":
        return np.where(np.isnan(y), -1, y > 0)
    if transform == "log1p":
        return np.where(np.isnan(y), np.nan, np.log1p(1e4 * y / np.maximum(total, 1)))
    mean = total * np.nansum(y, axis=0) / np.nansum(y)
    with np.errstate(invalid="ignore"):
        return np.where((total == 0) & ~np.isnan(y), 0.0, (y - mean) / np.sqrt(mean + mean**2 / 100))


@pytest.fixture(params=["dense", "sparse"])
def dataset(request: Any, tmp_path: Path) -> Any:
    views = {"rna": counts(), "other": np.random.default_rng(1).standard_normal((N, 3))}
    return write_dataset(tmp_path / "d", views, block_rows=32, layout={"rna": request.param})


@pytest.mark.parametrize("transform", ["log1p", "binarize", "pearson"])
def test_values(dataset: Any, transform: str) -> None:
    before = {file: file.stat().st_size for file in dataset.path.rglob("c/*")}
    grown = add_view(dataset, "made", of="rna", transform=transform, max_value=None)
    y = expected(transform, counts())
    if transform == "pearson":
        y = np.clip(y, -np.sqrt(N), np.sqrt(N))
    assert list(grown.views) == ["rna", "other", "made"]
    found = grown.values("made")
    kind = grown.views["made"].kind
    assert (found.dtype, kind.name) == (
        (np.int8, "bernoulli") if transform == "binarize" else (np.float32, "gaussian")
    )
    np.testing.assert_allclose(found, y, rtol=2e-5, atol=1e-5)
    blocks = [grown.block(i).data["made"] for i in range(grown.n_blocks)]
    assert np.concatenate(blocks).tobytes() == found.tobytes()
    assert not blocks[0].flags.writeable
    assert grown.values("made", 30, 70).tobytes() == found[30:70].tobytes()
    seen = np.where(kind.observed(found), found, np.nan).astype(float)
    moments = grown.moments("made")
    np.testing.assert_allclose(moments["mean"], np.nanmean(seen, axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(moments["variance"], np.nanvar(seen, axis=0), rtol=1e-6, atol=1e-7)
    assert grown.views["made"].missing == "scattered"
    assert grown.features("made").tolist() == grown.features("rna").tolist()
    assert {file: file.stat().st_size for file in dataset.path.rglob("c/*")}.items() >= before.items()
    assert not (dataset.path / "made" / "values").exists()
    grown.verify()
    assert grown.tree["made"].attrs["transform"]["name"] == transform
    assert {v["name"]: v["of"] for v in grown.describe()["views"]} == {"rna": "", "other": "", "made": "rna"}
    assert "computed" in repr(grown)
    block, truth = grown.read(1, holdout=Holdout(0.3))
    hidden = block.hidden["made"]
    np.testing.assert_array_equal(truth["made"], found[32:64][hidden])
    assert not kind.observed(block.data["made"][hidden]).any()


def test_largest_values(dataset: Any) -> None:
    free = add_view(dataset, "free", "rna", "log1p").values("free").astype(float)
    grown = add_view(dataset.path, "cut", of="rna", transform="log1p", max_value=1.5)
    most = np.nanmean(free, axis=0) + 1.5 * np.nanstd(free, axis=0)
    np.testing.assert_allclose(grown.values("cut"), np.minimum(free, most), rtol=1e-5)
    assert (free > most).any()
    near = add_view(dataset.path, "near", of="rna", transform="pearson", max_value=0.5).values("near")
    assert np.nanmax(np.abs(near)) == 0.5
    thousand = add_view(dataset.path, "k", of="rna", transform="log1p", target_sum=1000.0).values("k")
    totals = np.nansum(np.expm1(thousand.astype(float)), axis=1)
    np.testing.assert_allclose(totals[np.nansum(counts(), axis=1) > 0], 1000.0, rtol=1e-4)


@pytest.mark.thorough
def test_a_fit_is_that_of_the_values_themselves(dataset: Any, tmp_path: Path) -> None:
    grown = add_view(dataset, "log", of="rna", transform="log1p")
    values = {"log": np.where(np.isnan(counts()), np.nan, grown.values("log"))}
    layout = {"log": dataset.manifest.views[0].layout}
    plain = write_dataset(tmp_path / "plain", values, {"log": "gaussian"}, block_rows=32, layout=layout)
    model = SparseGFA(n_factors=2, warmup_iter=4, max_iter=4, views=("log",))
    derived, stored = (factorflow.fit(data, model, seed=1) for data in (grown, plain))
    np.testing.assert_array_equal(derived.scores().values, stored.scores().values)
    with pytest.raises(InputError, match="was replaced"):
        dataset.block(0)


def test_memory_of_computing_is_counted(dataset: Any) -> None:
    grown = add_view(dataset, "log", of="rna", transform="log1p")
    footprint = Footprint(0, 0, 0)
    alone, stored = grown.meta(["log"]), grown.meta(["other"])
    more = required_bytes(alone, footprint, 1, 1, 1 << 30) - required_bytes(stored, footprint, 1, 1, 1 << 30)
    assert more >= 4 * 32 * 4 * (D - 3) + 2 * 3 * 32 * 4 * D


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"of": "other"}, InputError, r"of = other: expected a view of counts \(rna\)"),
    ({"of": "what"}, InputError, "of = what"),
    ({"name": "rna"}, InputError, "name = rna: expected none of rna, other"),
    ({"name": "a/b"}, InputError, "view name"),
    ({"transform": "sqrt"}, OptionError, "transform = sqrt"),
    ({"target_sum": 0.0}, OptionError, "target_sum"),
    ({"max_value": -1.0}, OptionError, "max_value"),
    ({"transform": "binarize", "max_value": 2.0}, InputError, "max_value = 2.*for binarize"),
    ({"batch": "donor"}, InputError, "batch = donor: expected nothing without features='highly_variable'"),
]


@pytest.mark.parametrize(("options", "error", "said"), REFUSED)
def test_refused(options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"rna": counts(), "other": np.eye(N)[:, :3] * 0.5})
    given = {"name": "log", "of": "rna", "transform": "log1p", **options}
    with pytest.raises(error, match=said):
        add_view(dataset, **given)
    assert open_dataset(dataset.path).fingerprint == dataset.fingerprint
    dataset.verify()


def test_of_a_derived_view_and_appending(tmp_path: Path) -> None:
    from factorflow.data.ingest.append import append_rows

    dataset = write_dataset(tmp_path / "d", {"rna": counts()})
    grown = add_view(dataset, "log", of="rna", transform="log1p")
    with pytest.raises(InputError, match="of = log: expected a view of counts"):
        add_view(grown, "twice", of="log", transform="binarize")
    with pytest.raises(InputError, match="with views computed from others"):
        append_rows(tmp_path / "d", {"rna": counts()})


def test_fingerprints(tmp_path: Path) -> None:
    made = []
    for number, options in enumerate([{}, {}, {"target_sum": 10.0}, {"max_value": 3.0}]):
        dataset = write_dataset(tmp_path / str(number), {"rna": counts()})
        made.append(add_view(dataset, "log", of="rna", transform="log1p", **options).fingerprint)
    assert made[0] == made[1]
    assert len({dataset.fingerprint, *made}) == 4


def test_killed_before_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is as it was, and the view can be added again."""
    dataset = write_dataset(tmp_path / "d", {"rna": counts()})

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("factorflow.data.ingest.add_view.write_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            add_view(dataset, "log", of="rna", transform="log1p")
    assert (tmp_path / "d" / "log").exists()
    left = open_dataset(tmp_path / "d")
    left.verify()
    assert list(left.tree.children) == ["rna"]
    assert list(left.views) == ["rna"]
    shutil.rmtree(tmp_path / "d" / "log" / "mean")
    add_view(left, "log", of="rna", transform="log1p").verify()


def test_in_a_shell(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from factorflow.cli import app

    dataset = write_dataset(tmp_path / "d", {"rna": counts()})
    flags = ["--of", "rna", "--transform", "log1p", "--target-sum", "1000", "--max-value", "10"]
    result = CliRunner().invoke(app, ["add-view", str(dataset.path), "log", *flags])
    assert result.exit_code == 0, result.output
    transform = open_dataset(dataset.path).manifest.views[1].transform
    assert transform == {"name": "log1p", "target_sum": 1000.0, "max_value": 10.0}


@pytest.mark.parametrize("transform", ["log1p", "binarize", "pearson"])
def test_some_of_the_features(dataset: Any, transform: str) -> None:
    """Values are those of the whole view: totals, and shares of features, are over all."""
    whole = add_view(dataset, "whole", of="rna", transform=transform)
    names, before = whole.features("rna")[[3, 4, 11, 29]], whole.fingerprint
    part = add_view(
        whole, "part", of="rna", transform=transform, features=[str(name) for name in names[::-1]]
    )
    assert part.features("part").tolist() == names.tolist()
    np.testing.assert_array_equal(part.values("part"), part.values("whole")[:, [3, 4, 11, 29]])
    np.testing.assert_array_equal(part.values("part", 30, 70), part.values("part")[30:70])
    for moment, values in part.moments("part").items():
        np.testing.assert_allclose(values, part.moments("whole")[moment][[3, 4, 11, 29]])
    entry = part.manifest.views[-1]
    if entry.block_entries:
        blocks = [part.read(i, ["part"], sparse=["part"])[0].data["part"] for i in range(part.n_blocks)]
        assert entry.block_entries >= max(block.entries.size for block in blocks) > 0
        rows = np.concatenate([block.dense(entry.kind) for block in blocks])
        np.testing.assert_array_equal(rows, part.values("part"))
    part.verify()
    assert open_dataset(part.path).fingerprint == part.fingerprint != before


def test_the_most_variable_features(tmp_path: Path) -> None:
    """Those that metadata mark, with their metadata; else those that vary most, within batches."""
    import pandas as pd

    values, marked = np.nan_to_num(counts()), np.arange(D) % 3 == 1
    names = [f"g{i}" for i in range(D)]
    about = pd.DataFrame({"highly_variable": marked, "symbol": [n.upper() for n in names]}, index=names)
    anndata = pytest.importorskip("anndata")
    made = write_dataset(tmp_path / "m", anndata.AnnData(values, var=about))
    view = next(iter(made.views))
    grown = add_view(made, "log", of=view, transform="log1p", features="highly_variable")
    assert grown.features("log").tolist() == np.array(names)[marked].tolist()
    assert grown.feature_metadata("log")["symbol"].tolist() == about["symbol"][marked].tolist()
    wide = np.random.default_rng(2).poisson(0.3, (60, 2100)).astype(float)
    plain = write_dataset(tmp_path / "w", {"rna": wide}, obs=pd.DataFrame({"donor": ["a", "b"] * 30}))
    table = plain.highly_variable("rna", 2000, batch="donor")
    grown = add_view(plain, "log", of="rna", transform="log1p", features="highly_variable", batch="donor")
    assert grown.features("log").tolist() == table.index[table["highly_variable"]].tolist()


def test_features_that_there_are_not(dataset: Any) -> None:
    with pytest.raises(InputError, match=r"features = feature99.*such as feature0"):
        add_view(dataset, "part", of="rna", transform="log1p", features=["feature1", "feature99"])
    with pytest.raises(InputError, match="features = variable: expected features of view rna"):
        add_view(dataset, "part", of="rna", transform="log1p", features="variable")
    assert list(open_dataset(dataset.path).views) == ["rna", "other"]
