"""Every shell and Python block of the README and of docs/, in order, in one folder for each page.

Python blocks of a page share their names, shell blocks a folder; a YAML block whose first line is a comment
with a file name becomes that file. What a page takes for given (data of the reader's own) is prepared here. A
block behind a line ``<!-- not run: why -->`` is left out, and no other. A table behind a line
``<!-- printed -->`` has the numbers that the block above it prints. Where a page has none, or is in LONG, the
fits of its Python blocks are short ones outside of the slow tests.

A few pages take seconds and are run with all tests. Those of minutes are slow, the others thorough: run by
`.ci/run`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
QUICK = {"docs/store-layout.md", "docs/tables.md"}
"""Pages of a few seconds."""

SLOW = {
    "docs/patches.md",
    "docs/posterior.md",
    "docs/models/sparse_gfa.md",
    "docs/models/sparse_gfa-draws.md",
    "docs/models/gplvm_cmf.md",
    "docs/quickstart.md",  # `.ci/run` does most of it, as the README's
    "docs/tutorial-digits.md",
    "docs/tutorial-strokes.md",
}
"""Pages of minutes."""

LONG = {"docs/tutorial-motions.md"}
"""Pages whose printed numbers the slow tests compare; in tests/contract/test_numbers.py a family that
finds others shows at once."""

SECONDS = {
    "docs/tutorial-digits.md": 251,
    "docs/quickstart.md": 205,
    "docs/patches.md": 169,
    "docs/models/sparse_gfa-draws.md": 138,
    "docs/models/sparse_gfa.md": 115,
    "docs/tutorial-strokes.md": 90,
    "README.md": 87,
    "docs/models/gplvm_cmf.md": 87,
    "docs/posterior.md": 55,
    "docs/tutorial-single-cell.md": 9,
    "docs/models/poisson_factors.md": 6,
    "docs/tutorial-motions.md": 8,
    "docs/models/sparse_gfa-smooth.md": 21,
    "docs/coming-from-mofa.md": 6,
    "docs/coming-from-mefisto.md": 6,
    "docs/coming-from-muvi.md": 6,
    "docs/models/identity_attribute.md": 8,
    "docs/models/probit.md": 4,
    "docs/tutorial-tables.md": 8,
    "docs/models/molten.md": 4,
    "docs/coming-from-scanpy.md": 6,
    "docs/coming-from-hmsc.md": 5,
    "docs/from-r.md": 20,
    "docs/cli.md": 18,
    "docs/watching.md": 17,
    "docs/ingest.md": 15,
    "docs/gallery.md": 15,
    "docs/tutorial-multi-omics.md": 12,
}
"""Seconds of processor time (Python 3.11, two busy cores), compilation included; the longest begin first."""

AT_MOST = {"max_iter": 20, "n_draws": 20, "n_burn_in": 20}
"""Options of the models in short fits, where they are larger: every stage of a fit is still gone through."""

LEFT_OUT = "<!-- not run: "
PRINTED = "<!-- printed -->"
WHOLE_FIT = factorflow.fit
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"tests/[\w/*]+\.\w+")
FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True)
class Piece:
    """A block: the line it begins at, its language, its text, and why it is not run."""

    line: int
    language: str
    text: str
    left_out: str | None


def pieces(page: str) -> list[Piece]:
    found: list[Piece] = []
    opened: tuple[int, str, str | None] | None = None
    lines: list[str] = []
    reason: str | None = None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number, fence[1], reason), []
        elif opened is not None and fence:
            found.append(Piece(opened[0], opened[1], "\n".join(lines) + "\n", opened[2]))
            opened, reason = None, None
        elif opened is not None:
            lines.append(line)
        elif line.startswith(LEFT_OUT):
            reason = line.removeprefix(LEFT_OUT).removesuffix(" -->")
        elif line.strip():
            reason = None
    assert opened is None, f"{page}: a block without an end"
    return found


def run_shell(piece: Piece, page: str, folder: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PREFECT_HOME": str(folder / ".prefect"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", piece.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page}:{piece.line}\n{done.stdout}\n{done.stderr}"


def fit_briefly(data: Any, model: Any = None, **given: Any) -> Any:
    """Fit as `factorflow.fit` does, with fewer iterations and draws."""
    fewer = {name: most for name, most in AT_MOST.items() if (getattr(model, name, None) or 0) > most}
    if not getattr(model, "n_draws", 1):
        fewer.pop("n_burn_in", None)  # an option of the sampler alone
    return WHOLE_FIT(data, model.model_copy(update=fewer) if fewer else model, **given)


def run_python(piece: Piece, page: str, names: dict[str, Any]) -> str:
    """Run a block and return what it prints."""
    source = "\n" * piece.line + piece.text  # so that errors name lines of the page
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, str(ROOT / page), "exec"), names)
    return printed.getvalue()


def printed_tables(page: str) -> list[tuple[int, list[str]]]:
    """Return the tables of a page that blocks print: their first lines, and their rows without the header."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        if line == PRINTED:
            first = next(i for i in range(number, len(lines)) if lines[i].strip())
            end = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
            found.append((first + 1, lines[first + 2 : end]))
    return found


def check_table(where: str, rows: list[str], printed: str) -> None:
    """Compare the numbers of a table with those of lines that begin alike, to a unit of their last digit."""
    assert rows, f"{where}: no table"
    for row in rows:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        line = next((line for line in printed.splitlines() if line.startswith(f"{name} ")), "")
        numbers = line.removeprefix(name).split()
        shown = [cell or "NaN" for cell in cells]
        alike = len(numbers) == len(shown) and all(
            (a == b == "NaN") or abs(float(a) - float(b)) <= 1.001 * 10.0 ** -len(b.partition(".")[2])
            for a, b in zip(numbers, shown, strict=True)
        )
        assert alike, f"{where}: {row}, where the block above prints\n{printed}"


def write_yaml(piece: Piece, folder: Path) -> None:
    first = piece.text.splitlines()[0]
    if first.startswith("# ") and first.endswith((".yaml", ".yml")):
        (folder / first.removeprefix("# ")).write_text(piece.text)


# What pages take for given


def views(n: int = 80) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two views of a cohort: 30 genes, 20 mutations."""
    rng = np.random.default_rng(0)
    scores, names = rng.standard_normal((n, 3)), [f"patient{i}" for i in range(n)]
    rna = scores @ rng.standard_normal((3, 30)) + 0.5 * rng.standard_normal((n, 30))
    mutations = (scores @ rng.standard_normal((3, 20)) + rng.standard_normal((n, 20)) > 0).astype(int)
    tables = (rna, "gene"), (mutations, "mutation")
    first, second = (
        pd.DataFrame(values, names, [f"{word}{i}" for i in range(values.shape[1])]) for values, word in tables
    )
    return first, second


def cohort(folder: Path) -> dict[str, Any]:
    rna, mutations = views()
    factorflow.write_dataset(folder / "cohort.zarr", {"rna": rna, "mutations": mutations})
    return {}


def arrays(folder: Path) -> dict[str, Any]:
    rna, mutations = views()
    rna.to_csv(folder / "rna.csv")
    mutations.to_parquet(folder / "mutations.parquet")
    return {"rna": rna, "mutations": mutations, "mutation": mutations, "groups": ["a", "b"] * 40}


def digits(folder: Path) -> dict[str, Any]:
    dataset = factorflow.write_dataset(folder / "digits.zarr", ROOT / "examples" / "multiple_features.npz")
    return {"new_dataset": dataset}


def fitted_digits(folder: Path) -> dict[str, Any]:
    names = digits(folder)
    model = factorflow.models.SparseGFA(n_factors=3)
    factorflow.fit(folder / "digits.zarr", model, holdout=0.1, max_iter=4, out=folder / "digits-k15.zarr")
    return names


def counts(folder: Path) -> dict[str, Any]:
    rng, n = np.random.default_rng(0), 400
    table = pd.DataFrame(
        {
            "site": rng.choice(list("abcdef"), n),
            "species": rng.choice(["wren", "robin", "tit"], n),
            "year": rng.integers(2018, 2022, n),
            "hours": rng.uniform(1, 4, n),
            "count": rng.poisson(2.0, n),
        }
    )
    table.to_parquet(folder / "counts.parquet")
    return {}


def study(folder: Path) -> dict[str, Any]:
    rna, mutations = views()
    factorflow.write_dataset(folder / "study.zarr", {"rna": rna, "mutations": mutations})
    return {}


def cohort_with_batches(folder: Path) -> dict[str, Any]:
    rna, mutations = views()
    obs = pd.DataFrame({"age": np.linspace(40.0, 70.0, 80), "batch": ["A", "B"] * 40}, rna.index)
    obs["patient"] = [f"p{i // 4}" for i in range(80)]
    factorflow.write_dataset(folder / "cohort.zarr", {"rna": rna, "mutations": mutations}, obs=obs)
    return {}


def bits(folder: Path) -> dict[str, Any]:
    factorflow.write_dataset(folder / "study.zarr", {"binary": views()[1]})
    return {}


def surveys(folder: Path) -> dict[str, Any]:
    counts(folder)
    formula = "count ~ site + species + year + offset(log(hours))"
    factorflow.write_table(folder / "surveys.zarr", folder / "counts.parquet", formula)
    return {}


def raw(folder: Path) -> dict[str, Any]:
    rna, mutations = views()
    rna.to_csv(folder / "rna.csv")
    counted = np.random.default_rng(0).poisson(2.0, (80, 6))
    frame = pd.DataFrame({"site": ["a", "b"] * 40, "year": [2020, 2021, 2022, 2023] * 20, "hours": 1.5})
    return {"rna": rna, "mutations": mutations, "counts": counted, "frame": frame}


def mites(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rate = rng.gamma(1.0, 1.0, (70, 2)) @ rng.gamma(0.5, 2.0, (2, 35))
    species = ["Brachy", "LRUG", *(f"species{i}" for i in range(33))]
    cells = [
        (site + 1, name, n) for (site, k), n in np.ndenumerate(rng.poisson(rate)) for name in [species[k]]
    ]
    pd.DataFrame(cells, columns=["site", "species", "count"]).to_csv(folder / "mites.csv", index=False)
    return {}


def film(folder: Path) -> dict[str, Any]:
    av = pytest.importorskip("av")
    rng = np.random.default_rng(0)
    for name in ("film.mp4", "new.mp4"):
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for _ in range(120):
                grey = np.repeat(rng.integers(0, 255, (48, 64, 1), np.uint8), 3, axis=2)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            container.mux(stream.encode())
    return {}


def images(folder: Path) -> dict[str, Any]:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    pixels = (rng.random((60, 64)) < 0.4).astype(float)
    new = factorflow.write_dataset(folder / "new.zarr", {"pixels": pixels[:10]}, {"pixels": "bernoulli"})
    return {"pixels": pixels, "new": new}


PREPARED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "README.md": arrays,
    "docs/cli.md": cohort,
    "docs/clusters.md": cohort,
    "docs/coming-from-mofa.md": arrays,
    "docs/ingest.md": raw,
    "docs/patches.md": film,
    "docs/posterior.md": fitted_digits,
    "docs/store-layout.md": digits,
    "docs/tables.md": counts,
    "docs/tutorial-tables.md": mites,
    "docs/models/gplvm_cmf.md": images,
    "docs/models/molten.md": surveys,
    "docs/models/probit.md": bits,
    "docs/models/sparse_gfa.md": study,
    "docs/models/sparse_gfa-covariates.md": cohort_with_batches,
    "docs/models/sparse_gfa-draws.md": study,
}
NEEDS = {"docs/tutorial-digits.md": "torch", "docs/tutorial-multi-omics.md": "statsmodels"}


def to_run(page: str) -> list[Piece]:
    return [piece for piece in pieces(page) if piece.language and piece.left_out is None]


def cases() -> list[Any]:
    """Return each page, and whether its fits are short ones."""
    found = []
    for page in sorted(PAGES, key=lambda page: -SECONDS.get(page, 0)):
        mark = pytest.mark.slow if page in SLOW else pytest.mark.thorough
        marks = [] if page in QUICK else [mark, pytest.mark.timeout(1800)]
        short = page in LONG or not (page in SLOW or printed_tables(page))
        if to_run(page):
            found.append(pytest.param(page, short, marks=marks, id=page))
        if page in LONG:
            whole = [pytest.mark.slow, pytest.mark.timeout(1800)]
            found.append(pytest.param(page, False, marks=whole, id=f"{page} whole"))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "short"), cases())
@pytest.mark.filterwarnings("default")  # as a reader has them
def test_blocks(page: str, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in NEEDS and find_spec(NEEDS[page]) is None:
        pytest.skip(f"needs {NEEDS[page]}")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    if short:
        monkeypatch.setattr(factorflow, "fit", fit_briefly)
    names, printed = PREPARED.get(page, lambda _: {})(tmp_path), dict[int, str]()
    for piece in to_run(page):
        if piece.language in {"sh", "bash"}:
            run_shell(piece, page, tmp_path)
        elif piece.language == "python":
            printed[piece.line] = run_python(piece, page, names)
        elif piece.language == "yaml":
            write_yaml(piece, tmp_path)
        else:
            pytest.fail(f"{page}:{piece.line}: blocks of {piece.language} are not known here")
    for line, rows in () if short else printed_tables(page):
        check_table(f"{page}:{line}", rows, printed[max(above for above in printed if above < line)])


@pytest.mark.parametrize("page", PAGES)
def test_what_pages_name_is_there(page: str) -> None:
    """Files that links lead to, and tests that back what is said; the site's build looks at its own links."""
    text, folder = (ROOT / page).read_text(encoding="utf-8"), (ROOT / page).parent
    links = [link for link in LINK.findall(text) if not link.startswith(("#", "https://"))]
    missing = [link for link in links if not (folder / link.partition("#")[0]).exists()]
    missing += [name for name in set(NAMED.findall(text)) if not list(ROOT.glob(name))]
    assert not missing, f"{page}: {missing}"


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r"file: (\S+)", (ROOT / "docs" / "_toc.yml").read_text(encoding="utf-8"))
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")}
    assert pages - {"index"} <= set(listed)


def test_blocks_that_are_not_run_say_why() -> None:
    for page in PAGES:
        for piece in pieces(page):
            assert piece.left_out is None or len(piece.left_out) > 20, f"{page}:{piece.line}"


def test_a_wrong_block_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="README.md:7"):
        run_shell(Piece(7, "sh", "false\ntrue\n", None), "README.md", tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_python(Piece(7, "python", textwrap.dedent("x = 1 / 0"), None), "README.md", {})


@pytest.mark.parametrize(
    "rows", [["| a b | .80 | |"], ["| a b | .81 | |"], ["| a b | .8 | |", "| c | -1.2 | 3 |"]]
)
def test_numbers_of_a_table(rows: list[str]) -> None:
    check_table("x", rows, "      u     v\na b  0.80  NaN\nc  -1.21   3\n")


@pytest.mark.parametrize("rows", [["| a b | .83 | |"], ["| a b | .80 | 1 |"], ["| a | .80 |"], []])
def test_a_stale_table_fails(rows: list[str]) -> None:
    with pytest.raises(AssertionError, match="page:7: "):
        check_table("page:7", rows, "      u     v\na b  0.80  NaN\n")
