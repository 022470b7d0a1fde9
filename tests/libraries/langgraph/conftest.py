"""The databases that the savers of the installed packages write."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from databases import Database

HAS_POSTGRES = find_spec("langgraph.checkpoint.postgres") is not None
SQLITE = ["sqlite", "aiosqlite"]
POSTGRES = ["postgresql", "aiopostgresql", "pool"] if HAS_POSTGRES else []

# The environments with other versions of LangGraph have fewer packages; test_environment.py checks that none is missing.
collect_ignore = ["test_postgres_failures.py", "test_prune.py"] if not HAS_POSTGRES else []
if find_spec("langgraph.checkpoint.redis") is None:
    collect_ignore.append("test_redis.py")
if find_spec("langgraph.checkpoint.conformance") is None:
    collect_ignore.append("test_conformance.py")
if find_spec("langgraph.channels.delta") is None:
    collect_ignore.append("test_delta_channels.py")


def pytest_generate_tests(metafunc):
    for name, schemes in (("database", SQLITE + POSTGRES), ("sqlite", SQLITE)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, schemes, indirect=True)


@pytest.fixture
def database(request):
    """A new database for each kind of saver."""
    if request.param in SQLITE:
        return Database(f"{request.param}:checkpoints.db", str(request.getfixturevalue("tmp_path") / "checkpoints.db"))
    url = request.getfixturevalue("postgres_url")
    return Database(request.param + ":" + url.partition(":")[2], url)


@pytest.fixture
def sqlite(request, tmp_path):
    """A new database for each saver of SQLite."""
    return Database(f"{request.param}:checkpoints.db", str(tmp_path / "checkpoints.db"))
