"""``python -m factorflow`` and ``factorflow``: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules load ends it without a traceback too."""
    try:
        from factorflow.cli import main as command
    except KeyboardInterrupt:
        print("Aborted.", file=sys.stderr)
        raise SystemExit(130) from None
    command()


if __name__ == "__main__":
    main()
