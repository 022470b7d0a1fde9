"""The log of the companion."""

from __future__ import annotations

import subprocess
import sys

from ckpt_observe.cli.companion import LOG_SIZE

PROGRAM = """
import logging, sys
from pathlib import Path
from ckpt_observe.cli.companion import _log_to
_log_to(Path(sys.argv[1]))
for number in range(3000):
    logging.warning("%d %s", number, "x" * 1000)
"""


def test_log_is_bounded(tmp_path):
    """The log stays below about 1 MiB, is private, ends with the last line, and can be shared by two companions."""
    log = tmp_path / "companion.log"
    writers = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(log)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert 0 < log.stat().st_size <= LOG_SIZE + 4096
    assert log.stat().st_mode & 0o077 == 0
    assert "2999 xxx" in log.read_text().splitlines()[-1]
    assert all(line.endswith("x" * 1000) for line in log.read_text().splitlines())
