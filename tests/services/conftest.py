"""One server of each kind for the whole run; every test begins with it empty."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import stores


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    pytest.importorskip("redis")
    with stores.redis(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "always") as (url, _):
        yield url


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    pytest.importorskip("psycopg")
    with stores.postgres(tmp_path_factory.mktemp("postgres")) as (url, _):
        yield url


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory):
    pytest.importorskip("obstore")
    with pytest.MonkeyPatch.context() as patch, stores.s3(tmp_path_factory.mktemp("s3"), patch) as (url, _):
        yield url
