"""The command `ckpt-observe`, also as `python -m ckpt_observe`. Imports nothing before Ctrl-C is handled: imports take most of the time."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command of this process and return its exit code."""
    try:
        from ckpt_observe.cli.main import main as run_command  # noqa: PLC0415

        return run_command()
    except KeyboardInterrupt:
        return 130  # as in a shell: 128 + SIGINT


if __name__ == "__main__":
    sys.exit(main())
