"""Collect the fragments in ``changes/`` into ``CHANGELOG.md``: ``changelog.py [VERSION DATE]``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SECTIONS = ("Removed", "Changed", "Added", "Fixed")


def collect(folder: Path) -> dict[str, str]:
    """Return the items of the fragments by section; other names of files are refused."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        section = path.stem.rpartition(".")[2].capitalize()
        text = path.read_text(encoding="utf-8").strip()
        if section not in SECTIONS or not text.startswith("- "):
            raise SystemExit(f"{path}: expected NAME.{'|'.join(SECTIONS).lower()}.md with list items")
        found.setdefault(section, []).append(text)
    return {section: "\n".join(texts) for section, texts in found.items()}


def release(text: str, items: dict[str, str], version: str, date: str) -> str:
    """Return the changelog with what is unreleased, and the fragments, under a version."""
    head, unreleased, rest = re.split(r"(?m)^(## Unreleased\n.*?)(?=^## |\Z)", text, maxsplit=1, flags=re.S)
    body = unreleased.removeprefix("## Unreleased\n")
    for section, more in items.items():
        title = f"### {section}\n"
        body = body.replace(title, f"{title}\n{more}\n", 1) if title in body else f"{body}\n{title}\n{more}\n"
    return f"{head}## Unreleased\n\n## {version} ({date})\n{body}{rest}"


def main(root: Path, words: list[str]) -> None:
    """Show the fragments, or move them under a version."""
    items = collect(root / "changes")
    if not words:
        print("\n\n".join(f"### {section}\n\n{text}" for section, text in items.items()))
        return
    file = root / "CHANGELOG.md"
    version, date = words
    file.write_text(release(file.read_text(encoding="utf-8"), items, version, date), encoding="utf-8")
    for path in (root / "changes").glob("*.*.md"):
        path.unlink()


if __name__ == "__main__":
    main(Path(__file__).parents[1], sys.argv[1:])
