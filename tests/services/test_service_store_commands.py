"""The commands that look into stores, with stores on real servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from store_commands import CHECKS, TASK, Commands, fill

from ckpt_observe.core import Checkpointer

pytestmark = pytest.mark.services


@pytest.fixture
def check(capsys):
    """Run every check with a store."""

    def run(url):
        with Checkpointer(url) as checkpointer:
            for task in checkpointer.store.tasks():
                for id in checkpointer.store.ids(task):  # also damaged ones, which `list` leaves out
                    checkpointer.store.delete(task, id)
        fill(url)
        for check in CHECKS:
            check(Commands(capsys), url)

    return run


def test_redis(check, redis_url):
    """Each command works with Redis."""
    check(redis_url)


def test_postgres(check, postgres_url):
    """Each command works with PostgreSQL."""
    check(postgres_url)


def test_objects(check, bucket_url):
    """Each command works with each object store."""
    check(f"{bucket_url}/commands")


def test_database_of_others_is_not_changed(capsys, postgres_url):
    """A database without checkpoints of the core does not get a table of ours."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS others")
        connection.execute("CREATE DATABASE others")
    url = postgres_url.rpartition("/")[0] + "/others"
    run = Commands(capsys)
    for command, arguments in (("list", []), ("show", []), ("extract", [TASK]), ("prune", ["--keep-last", "1"]), ("stats", [])):
        assert run(command, url, *arguments).code == 1
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
