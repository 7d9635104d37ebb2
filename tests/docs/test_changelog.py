"""Changelog fragments: every file is one, and a release moves them under its version."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def changelog() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / ".ci" / "changelog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fragment_can_be_collected(changelog: ModuleType) -> None:
    changelog.collect(ROOT / "changes")


def test_a_release_moves_fragments_under_its_version(changelog: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("no fragment")
    (tmp_path / "changes" / "names.changed.md").write_text("- Names.\n")
    (tmp_path / "changes" / "tables.added.md").write_text("- Tables.\n")
    before = "# Changelog\n\n## Unreleased\n\n### Changed\n\n- Old.\n\n## 0.0.1 (2025-01-01)\n\n- First.\n"
    (tmp_path / "CHANGELOG.md").write_text(before)
    changelog.main(tmp_path, ["0.1.0", "2026-01-01"])
    text = (tmp_path / "CHANGELOG.md").read_text()
    places = [text.index(part) for part in ("## Unreleased", "## 0.1.0 (2026-01-01)", "- Old.", "- Tables.")]
    assert places == sorted(places)
    assert text.index("- Names.") < text.index("## 0.0.1 (2025-01-01)\n\n- First.")
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]


@pytest.mark.parametrize(("name", "text"), [("a.news.md", "- A."), ("a.added.md", "A.")])
def test_other_files_are_refused(changelog: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match="expected NAME"):
        changelog.collect(tmp_path)
