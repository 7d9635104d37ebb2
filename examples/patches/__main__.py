"""``python -m examples.patches write SOURCE... --out DATASET`` and ``report POSTERIOR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from examples.patches.report import write_report
from examples.patches.write import write_patches
from factorflow import open_posterior
from factorflow.cli.application import serve
from factorflow.cli.options import path, value_of
from factorflow.cli.output import DisplayedResult, command
from factorflow.errors import InputError

__all__ = ["app"]


def write(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Photographs, films, .npy or .npz, or folders of them."),
    ],
    out: Annotated[Path, typer.Option(help="Dataset to write.", parser=path)],
    size: Annotated[
        str | None, typer.Option(help="Pixels of a patch: 12, or HEIGHTxWIDTH; 12 if left out.")
    ] = None,
    sequences: Annotated[int, typer.Option(help="Sequences.")] = 400,
    frames: Annotated[int, typer.Option(help="Frames of a sequence.")] = 50,
    kind: Annotated[str | None, typer.Option(help="What frames are, if not plain: images or video.")] = None,
    speed: Annotated[
        float | None,
        typer.Option(help="Pixels a frame (rms); left out, 1 over photographs, 0 in films."),
    ] = None,
    persistence: Annotated[float, typer.Option(help="Correlation of neighbouring velocities.")] = 0.95,
    rotation: Annotated[float, typer.Option(help="Degrees a frame (rms).")] = 0.0,
    zoom: Annotated[float, typer.Option(help="Relative change of scale a frame (rms).")] = 0.0,
    most_zoom: Annotated[float, typer.Option(help="Largest scale, and inverse of the smallest.")] = 1.5,
    every: Annotated[int, typer.Option(help="Of a film, frames from one patch to the next.")] = 1,
    least_contrast: Annotated[
        float, typer.Option(help="Least deviation of the pixels of a patch, as a share of the frame's.")
    ] = 0.0,
    components: Annotated[
        str,
        typer.Option(help="Principal components: their number, or a share of the variance; null: pixels."),
    ] = "0.95",
    whiten: Annotated[bool, typer.Option(help="Divide by standard deviations.")] = True,
    own_mean: Annotated[bool, typer.Option(help="Take from each patch the mean of its pixels.")] = True,
    like: Annotated[Path | None, typer.Option(help="Dataset of patches whose transform to take.")] = None,
    view: Annotated[str, typer.Option(help="Name of the view.")] = "patches",
    seed: Annotated[int, typer.Option(min=0, help="Key of the random numbers.")] = 0,
    block_rows: Annotated[int | None, typer.Option(help="Rows of a block, a power of two.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the dataset at OUT.")] = False,
) -> DisplayedResult:
    """Write sequences of patches, seen by windows that move over photographs or through films."""
    dataset = write_patches(
        out,
        sources if len(sources) > 1 else sources[0],
        size=None if size is None else _size(size),
        n_sequences=sequences,
        n_frames=frames,
        kind=kind,  # type: ignore[arg-type]  # refused there
        speed=speed,
        persistence=persistence,
        rotation=rotation,
        zoom=zoom,
        most_zoom=most_zoom,
        every=every,
        least_contrast=least_contrast,
        n_components=value_of(components),
        whiten=whiten,
        own_mean=own_mean,
        like=like,
        view=view,
        seed=seed,
        block_rows=block_rows,
        overwrite=overwrite,
    )
    return DisplayedResult(dataset.describe(), repr(dataset))


def _size(text: str) -> Any:
    """Return one number, or the two on both sides of an x."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts):
        raise InputError("size", text, "12, or HEIGHTxWIDTH such as 12x16", "Correct it.")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def report(
    posterior: Annotated[Path, typer.Argument(help="Posterior of a fit to patches.", parser=path)],
    out: Annotated[
        Path | None, typer.Option(help="HTML file; left out, beside the posterior.", parser=path)
    ] = None,
) -> dict[str, str]:
    """Write the report of a posterior, with the fields of its identities as pictures."""
    opened = open_posterior(posterior)
    return {"report": str(write_report(opened, out or f"{str(posterior).removesuffix('.zarr')}.html"))}


app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
for function in (write, report):
    command(app)(function)

if __name__ == "__main__":
    serve(app)
