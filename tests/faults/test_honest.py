"""Input that cannot be used is refused by name, before anything is lost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.cli.options import _read_options
from factorflow.errors import InputError, RunError

Y = np.random.default_rng(0).standard_normal((40, 5))
GFA = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 4}


@pytest.mark.parametrize("address", ["ftp://host/x.zarr", "https://host/x.zarr"])
def test_an_address_is_no_path(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not turned into folders of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    data = factorflow.write_dataset(tmp_path / "data" / "d.zarr", {"y": Y})
    before = sorted(tmp_path.iterdir())
    for use in (
        lambda: factorflow.write_dataset(address, {"y": Y}),
        lambda: factorflow.simulate("sparse_gfa", address, n_samples=40),
        lambda: factorflow.open_dataset(address),
        lambda: factorflow.fit(data, GFA, out=address),
        lambda: factorflow.open_posterior(address),
    ):
        with pytest.raises(InputError, match="a path") as caught:
            use()
        assert address in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.filterwarnings("ignore:.*are constant")
@pytest.mark.parametrize(("values", "holdout"), [(np.ones((40, 5)), 0.0), (Y, 0.99)])
def test_nothing_to_learn(values: Any, holdout: float, tmp_path: Path) -> None:
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": values})
    with pytest.raises(InputError, match="some that (differ|are not held out)"):
        factorflow.fit(data, GFA, holdout=holdout)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ('name,"a\nb",c\ns1,1,2\ns2,3,4\n', ["a\nb", "c"]),
        ("name,a,b\ns1,1,2\ns2,3,\ns3,5,6\n", ["a", "b"]),
        ("name,a,b\ns1,1,2\ns2,3\n", None),
        ("name,a,b\ns1,1,2\ns2,3,4,5\n", None),
        ("name,a,b\ns1,1,2\ns2,3,4\ns3", None),
    ],
    ids=["break in a name", "missing", "short", "long", "cut"],
)
@pytest.mark.filterwarnings("ignore:.*no line break at its end")  # of what was cut off
def test_lines_of_another_length(text: str, features: list[str] | None, tmp_path: Path) -> None:
    table = tmp_path / "v.csv"
    table.write_text(text)
    if features is not None:
        data = factorflow.write_dataset(tmp_path / "d.zarr", {"v": table}, {"v": "gaussian"})
        assert data.features("v").tolist() == features
        return
    with pytest.raises(InputError, match=str(table)):
        factorflow.write_dataset(tmp_path / "d.zarr", {"v": table}, {"v": "gaussian"})
    assert [p.name for p in tmp_path.iterdir()] == ["v.csv"]


def test_omics_files_that_do_not_fit(tmp_path: Path) -> None:
    """One without a matrix; one whose samples cannot be told apart."""
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(obs={"q": [1.0, 2.0, 3.0]}).write_h5ad(tmp_path / "empty.h5ad")
    with pytest.raises(InputError, match="AnnData without X"):
        factorflow.write_dataset(tmp_path / "d.zarr", {"v": tmp_path / "empty.h5ad"})
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": Y})
    posterior = factorflow.fit(data, GFA)
    from factorflow.analysis.export import annotate_anndata

    twice = anndata.AnnData(X=Y.astype(np.float32))
    twice.var_names = list(data.features("y"))
    with warnings.catch_warnings(action="ignore"):
        twice.obs_names = ["sample0"] * 2 + [f"sample{i}" for i in range(2, 40)]
    with pytest.raises(InputError, match="sample0: expected every name once"):
        annotate_anndata(posterior, twice)


def test_a_configuration_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match=r"model\.yaml"):
        _read_options(tmp_path / "model.yaml")


@pytest.mark.thorough
def test_a_run_that_was_ended_in_its_burn_in_says_how_to_go_on(tmp_path: Path) -> None:
    """Complete by its own budget it is run anew; interrupted it is resumed."""
    y = (np.random.default_rng(1).random((40, 5)) < 0.5).astype(float)
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": y}, {"y": "bernoulli"})
    out, model = tmp_path / "p.zarr", {"model": "probit", "n_factors": 2}
    posterior = factorflow.fit(data, model, max_iter=2, out=out)
    with pytest.raises(InputError, match="overwrite=True"):
        posterior.predict("y")
    assert factorflow.resume(out).record == posterior.record  # complete as it is
    with pytest.raises(InputError, match="an interrupted run"):
        factorflow.resume(out, max_iter=60)

    def stop(event: Any) -> None:
        if type(event).__name__ == "IterationDone" and event.iteration == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        factorflow.fit(data, model, out=out, overwrite=True, on_event=stop)
    with pytest.raises(InputError, match="factorflow resume"):
        factorflow.open_posterior(out).predict("y")


@pytest.mark.thorough
def test_a_full_disk_in_the_closing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by name, with what is free and needed; the checkpoint is kept and goes on."""
    data = factorflow.write_dataset(tmp_path / "d.zarr", {"y": Y})
    expected = factorflow.fit(data, GFA)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("factorflow.posterior.store.write_manifest", full)
    with pytest.raises(
        RunError, match=r"p\.zarr.*No space left.*bytes are free.*needed.*go on with resume"
    ) as e:
        factorflow.fit(data, GFA, out=tmp_path / "p.zarr", checkpoint_every=2)
    assert e.value.exit_code == 1
    monkeypatch.undo()
    found = factorflow.resume(tmp_path / "p.zarr")
    assert found.scores().values.tobytes() == expected.scores().values.tobytes()
