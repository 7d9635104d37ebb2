"""Tensors and frames of other libraries are views."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from factorflow import write_dataset
from factorflow.errors import InputError

VALUES = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
NAMES = [f"c{i}" for i in range(30)]


class Tensor:
    """What a tensor has in common with one of torch: a type that is none of NumPy's."""

    shape, ndim = VALUES.shape, 2

    def __init__(self, message: str = "") -> None:
        self.message = message

    @property
    def dtype(self) -> Any:
        return type("Dtype", (), {"__str__": lambda _: "float32"})()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.message:
            raise RuntimeError(self.message)
        return np.asarray(VALUES, dtype)


def test_arrays_with_types_of_their_own(tmp_path: Path) -> None:
    np.testing.assert_array_equal(write_dataset(tmp_path / "a", {"x": Tensor()}).values("x"), VALUES)
    with pytest.raises(InputError, match="view 'x' = an object of type Tensor .it is elsewhere."):
        write_dataset(tmp_path / "b", {"x": Tensor("it is elsewhere")})


BITS = VALUES > 0


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(BITS).astype(object),
        pd.DataFrame(BITS).astype("bool[pyarrow]"),
        pd.DataFrame(BITS * 1).astype(object),
        pd.DataFrame(BITS).map(lambda bit: decimal.Decimal(int(bit))),
    ],
    ids=["objects", "arrow", "integers", "decimals"],
)
def test_columns_of_frames_that_are_numbers_or_truth_values(tmp_path: Path, frame: pd.DataFrame) -> None:
    """Truth values with a gap are objects in a frame that pandas read from a text table."""
    given = frame.add_prefix("f")
    given.iloc[2, 1] = None
    values = write_dataset(tmp_path / "a", {"x": given}).values("x")
    expected = BITS * 1
    expected[2, 1] = -1
    np.testing.assert_array_equal(values, expected)
    assert given.iloc[0, 0] == frame.iloc[0, 0]
    assert given.dtypes.equals(frame.add_prefix("f").dtypes)
    with pytest.raises(InputError, match="columns of view 'x' = f0: expected numeric columns"):
        write_dataset(tmp_path / "b", {"x": given.assign(f0=["a", *[1] * (len(given) - 1)])})


@pytest.mark.parametrize("name", ["plain", "bfloat16", "gradient", "coo", "csr", "complex"])
def test_torch(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.tensor(VALUES)
    tensor = {
        "plain": lambda: whole.double(),
        "bfloat16": lambda: whole.bfloat16(),
        "gradient": lambda: whole.requires_grad_(),
        "coo": lambda: whole.to_sparse_coo(),
        "csr": lambda: whole.to_sparse_csr(),
        "complex": lambda: whole * 1j,
    }[name]()
    if name == "complex":
        with pytest.raises(InputError, match="complex"):
            write_dataset(tmp_path / "a", {"x": tensor})
        return
    dataset = write_dataset(tmp_path / "a", {"x": tensor})
    np.testing.assert_allclose(dataset.values("x"), VALUES, rtol=2**-8 if name == "bfloat16" else 0)


def test_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    values: list[list[float | None]] = VALUES.T.tolist()
    values[1][2] = None
    frame = polars.DataFrame(values, schema=list("abcd"))
    dataset = write_dataset(tmp_path / "a", {"x": frame})
    expected = VALUES.copy()
    expected[2, 1] = np.nan
    np.testing.assert_array_equal(dataset.values("x"), expected)
    assert dataset.features("x").tolist() == list("abcd")
    named = frame.insert_column(0, polars.Series("cell", NAMES))
    dataset = write_dataset(tmp_path / "b", {"x": named})
    np.testing.assert_array_equal(dataset.values("x"), expected)
    assert dataset.obs_names.tolist() == NAMES
    site = polars.Series("site", ["x", None, "y"] * 10)
    dataset = write_dataset(
        tmp_path / "c", {"x": frame.drop("cell"), "site": site}, inputs={"site": "categorical"}
    )
    assert dataset.features("site").tolist() == ["x", "y"]
    with pytest.raises(InputError, match="LazyFrame that is not computed yet.*collect"):
        write_dataset(tmp_path / "d", {"x": frame.lazy()})


def test_tables_of_arrow(tmp_path: Path) -> None:
    table = pa.table({"cell": NAMES, "a": VALUES[:, 0], "b": pa.array([None, *VALUES[1:, 1].tolist()])})
    dataset = write_dataset(tmp_path / "a", {"x": table})
    assert dataset.obs_names.tolist() == NAMES
    assert dataset.features("x").tolist() == ["a", "b"]
    assert np.isnan(dataset.values("x")[0, 1])
    two = table.append_column("other", [NAMES])
    with pytest.raises(InputError, match="columns of view 'x' = other: expected numeric"):
        write_dataset(tmp_path / "b", {"x": two})


def test_a_frame_of_dask(tmp_path: Path) -> None:
    frames = pytest.importorskip("dask.dataframe")
    import pandas as pd

    lazy = frames.from_pandas(pd.DataFrame(VALUES, columns=list("abcd")), npartitions=2)
    with pytest.raises(InputError, match="not computed yet.*compute"):
        write_dataset(tmp_path / "a", {"x": lazy})


def test_metadata_of_other_libraries(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(VALUES, index=NAMES)
    table = pa.table({"cell": NAMES[::-1], "age": list(range(30)), "site": ["x", "y"] * 15})
    dataset = write_dataset(tmp_path / "a", {"x": frame}, obs=table)
    assert dataset.obs["age"].loc["c0"] == 29  # by name, not by position
    with pytest.raises(InputError, match="first column of obs = '0', '1'"):
        write_dataset(tmp_path / "b", {"x": frame}, obs=table.select(["age", "site"]))
    dataset = write_dataset(tmp_path / "c", {"x": VALUES}, obs=table.select(["age", "site"]))
    assert dataset.obs["age"].tolist() == list(range(30))
