"""The servers of the fault matrix, and administrators' access to them. Needs `tests/services` on the path."""

from __future__ import annotations

import subprocess
import urllib.parse
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import processes
import psycopg
import pytest
import redis
import stores

from tests.fault_matrix.proxy import Proxy

SECRET = "sesame"


class Servers:
    """PostgreSQL, Redis and an S3 server, each started when it is first used."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._tmp_path_factory = tmp_path_factory
        self._running = ExitStack()

    def close(self) -> None:
        self._running.close()

    def url(self, store: str, monkeypatch: pytest.MonkeyPatch, *, port: int | None = None, user: str = "", secret: str = "") -> str:
        """Return the URL of a server, through another port or as another user if given. For S3, that is set in the environment."""
        if store == "s3":
            environment = stores.environment("s3", port or self.port("s3"))
            environment |= {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret} if user else {}
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return "s3://checkpoints/prefix"
        address = f"127.0.0.1:{port or self.port(store)}"
        if store == "redis":
            return f"redis://{f'{user}:{secret}@' if user else ''}{address}/0"
        return f"postgresql://{user or 'tester'}{f':{secret}' if secret else ''}@{address}/postgres"

    def port(self, store: str) -> int:
        return {"postgresql": self._postgres_port, "redis": self._redis_port, "s3": self._s3_port}[store]()

    def _postgres_port(self) -> int:
        return urllib.parse.urlsplit(self.postgres_url).port or 0

    def _redis_port(self) -> int:
        return urllib.parse.urlsplit(self.redis_url).port or 0

    def _s3_port(self) -> int:
        return self.s3_port

    def proxy(self, store: str) -> Proxy:
        proxy = Proxy(self.port(store))
        self._running.callback(proxy.close)
        return proxy

    @cached_property
    def postgres_url(self) -> str:
        """A server with the roles `stranger`, who may do nothing, `reader`, who may not write, and `locked`, who needs a password."""
        url, _ = self._running.enter_context(stores.postgres())
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE locked LOGIN PASSWORD '{SECRET}'")
            admin.execute("CREATE ROLE stranger LOGIN")
            admin.execute("CREATE ROLE reader LOGIN SUPERUSER")
            admin.execute("ALTER ROLE reader SET default_transaction_read_only = on")
            rules = Path(admin.execute("SHOW hba_file").fetchone()[0])
            rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            admin.execute("SELECT pg_reload_conf()")
            loaded = "SELECT 1 FROM pg_hba_file_rules WHERE user_name = '{locked}'"
            processes.eventually(lambda: admin.execute(loaded).fetchone(), "pg_hba.conf is read")
        return url

    @cached_property
    def redis_url(self) -> str:
        """A server with the user `stranger`, who may do nothing."""
        url, _ = self._running.enter_context(stores.redis(self._tmp_path_factory.mktemp("redis")))
        with redis.Redis.from_url(url) as admin:
            admin.execute_command("ACL", "SETUSER", "stranger", "on", f">{SECRET}", "~*", "-@all", "+hello", "+client")
        return url

    @cached_property
    def s3_port(self) -> int:
        """A server with the user `stranger`, who has no right to the bucket."""
        port, directory = processes.free_port(), self._tmp_path_factory.mktemp("s3")
        users = self._tmp_path_factory.mktemp("s3-users")
        (directory / "checkpoints").mkdir()
        program = processes.program("versitygw")
        arguments = [program, "--access", "testing", "--secret", "testing", "--port", f"127.0.0.1:{port}", "--iam-dir", str(users)]
        self._running.enter_context(processes.running([*arguments, "posix", str(directory)], lambda: processes.listens(port)))
        admin = [program, "admin", "-a", "testing", "-s", "testing", "-er", f"http://127.0.0.1:{port}"]
        subprocess.run([*admin, "create-user", "-a", "stranger", "-s", SECRET, "-r", "user"], check=True, capture_output=True)
        return port
