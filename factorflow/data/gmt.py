"""Feature sets in files of the Gene Matrix Transposed format."""

from __future__ import annotations

import os
from pathlib import Path

from factorflow.errors import InputError


def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read feature sets from a GMT file.

    Parameters
    ----------
    path : path
        A set a line: name, description and members, separated by tabs.

    Returns
    -------
    dict of str to list of str
        Members by set.

    Raises
    ------
    InputError
        When the file cannot be read, a line has no members, or a name comes twice.

    Examples
    --------
    >>> from pathlib import Path
    >>> text = "hallmark\tdescription\tgene1\tgene2\n"
    >>> _ = Path("sets.gmt").write_text(text)
    >>> factorflow.analysis.read_gmt("sets.gmt")
    {'hallmark': ['gene1', 'gene2']}
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()  # without the mark that Excel writes
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("gmt", str(path), "a GMT file", f"It cannot be read: {error}.") from error
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, *fields = (field.strip() for field in line.split("\t"))
        members = [member for member in fields[1:] if member]
        if not members or name in sets:
            what = "a new name" if name in sets else "name, description and members, separated by tabs"
            raise InputError(f"line {number} of {path}", line[:60], what, "Correct the file.")
        sets[name] = members
    return sets
