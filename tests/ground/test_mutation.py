"""The places that mutation testing names are there (`tests/mutation/config.toml`)."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_pattern_is_of_a_file() -> None:
    """A file that was moved would be left out, or its faults shown to no test beside it."""
    config = tomllib.loads((ROOT / "tests/mutation/config.toml").read_text())
    files = [str(p.relative_to(ROOT)) for top in ("factorflow", "tests") for p in (ROOT / top).rglob("*.py")]
    tables = [config["compiled"], config["home"], config["needs"]]
    patterns = [*config["targets"], *config["excluded"], *config["unasked"], config["first"]]
    patterns += [pattern for table in tables for pattern in table]
    shown = [pattern for table in tables[:2] for listed in table.values() for pattern in listed]
    patterns += [pattern.partition(".py*")[0] + ".py*" if ".py*" in pattern else pattern for pattern in shown]
    assert [p for p in patterns if not any(fnmatch(name, p) for name in files)] == []
    targets = [name for name in files if any(fnmatch(name, p) for p in config["targets"])]
    assert len(targets) > 200
