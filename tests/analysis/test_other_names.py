"""Features called by a column of their metadata: identifiers in the data, symbols in sets and figures."""

from __future__ import annotations

from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.errors import InputError
from factorflow.report.drawing import colors_of

SETS = {"first": [f"SYM{j}" for j in range(6)], "last": [f"SYM{j}" for j in range(12, 18)]}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 20)) + 0.3 * rng.standard_normal((40, 20))
    ids, symbols = [f"ENSG{j:03d}" for j in range(20)], [f"SYM{min(j, 18)}" for j in range(20)]
    var = pd.DataFrame({"length": np.arange(20), "symbol": symbols}, ids)
    data = anndata.AnnData(values, pd.DataFrame(index=[f"s{i}" for i in range(40)]), var)
    path = tmp_path_factory.mktemp("names") / "d.zarr"
    dataset = ff.write_dataset(path, {"rna": data})
    return ff.fit(dataset, n_factors=2, max_iter=20, progress=False)


def test_sets_of_symbols(fitted: Any) -> None:
    found = fitted.enrich("rna", SETS)
    renamed = {name: [f"ENSG{int(member[3:]):03d}" for member in members] for name, members in SETS.items()}
    expected = fitted.enrich("rna", renamed)
    pd.testing.assert_frame_equal(found, expected)
    assert (found.attrs["names"], expected.attrs["names"]) == ("symbol", None)


def test_a_network_of_symbols(fitted: Any) -> None:
    """A symbol of two features stands for both."""
    network = pd.DataFrame(
        {"source": "a", "target": [f"SYM{j}" for j in (0, 1, 2, 3, 18)], "weight": [1, 1, -1, 1, 1]}
    )
    table = fitted.enrich("rna", network, sign="positive", test="parametric")
    assert set(table["size"]) == {6}
    network["target"] = [f"ENSG{j:03d}" for j in (0, 1, 2, 3, 18)]
    network.loc[5] = ["a", "ENSG019", 1]
    pd.testing.assert_frame_equal(table, fitted.enrich("rna", network, sign="positive", test="parametric"))


def test_colours_by_symbol(fitted: Any) -> None:
    rows = np.arange(40)
    np.testing.assert_array_equal(colors_of(fitted, "SYM3", rows), colors_of(fitted, "ENSG003", rows))
    np.testing.assert_array_equal(colors_of(fitted, "rna:SYM3", rows), colors_of(fitted, "ENSG003", rows))
    with pytest.raises(InputError, match="rna:ENSG018 or rna:ENSG019"):
        colors_of(fitted, "SYM18", rows)


def test_without_the_dataset_there_are_names_alone(fitted: Any, tmp_path: Any) -> None:
    fitted.save(tmp_path / "p.zarr")
    alone = ff.open_posterior(tmp_path / "p.zarr")
    alone.run["dataset"] = str(tmp_path / "gone.zarr")
    with pytest.raises(InputError, match="ENSG000"):
        alone.enrich("rna", SETS)
