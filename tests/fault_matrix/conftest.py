"""Servers for the fault matrix: one of each kind, started when it is first needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    from tests.fault_matrix.servers import Servers  # noqa: PLC0415 - needs the line above

    servers = Servers(tmp_path_factory)
    yield servers
    servers.close()
