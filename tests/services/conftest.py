"""One server of each kind for the whole run; every test begins with it empty."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import servers


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    pytest.importorskip("redis")
    with servers.redis(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "always") as (url, _):
        yield url


@pytest.fixture(scope="session")
def postgres_url():
    pytest.importorskip("psycopg")
    with servers.postgres() as (url, _):
        yield url


@pytest.fixture(scope="session")
def s3_url():
    pytest.importorskip("obstore")
    with pytest.MonkeyPatch.context() as patch, servers.s3(patch) as (url, _):
        yield url
