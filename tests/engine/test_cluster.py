"""The cluster that a run starts for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from factorflow.engine.cluster import local_cluster

def loaded():
    import sys
    return "prefect" in sys.modules

import prefect
client, owned = local_cluster(2, "1GiB")
print(sorted(client.run(loaded).values()))
for thing in owned:
    thing.close()
"""


def test_workers_do_not_import_the_script(tmp_path: Path) -> None:
    """Also one that starts the cluster outside ``if __name__ == "__main__"``."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "[False, False]" in done.stdout, done.stderr
