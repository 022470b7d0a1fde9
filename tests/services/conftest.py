"""One server of each kind for the whole run. Tests empty the stores of checkpoints; in telemetry servers each test has its own service name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "dashboards"))  # the table of panels

import agent
import ai_pages
import processes
import stores
import telemetry


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    pytest.importorskip("redis")
    with stores.redis(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "always") as (url, _):
        yield url


@pytest.fixture(scope="session")
def postgres_url():
    pytest.importorskip("psycopg")
    with stores.postgres() as (url, _):
        yield url


@pytest.fixture(scope="session", params=["s3", "az"])
def bucket_url(request, tmp_path_factory):
    """A bucket of each kind of object store, with the environment variables for it."""
    pytest.importorskip("obstore")
    port = processes.free_port()
    with pytest.MonkeyPatch.context() as patch, getattr(stores, request.param)(tmp_path_factory.mktemp(request.param), port) as url:
        for name, value in stores.environment(request.param, port).items():
            patch.setenv(name, value)
        yield url


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory):
    server = telemetry.Jaeger(tmp_path_factory.mktemp("jaeger"))
    with server.running():
        yield server


@pytest.fixture
def collector(tmp_path):
    """An OTel Collector that is not running yet."""
    (tmp_path / "collector").mkdir()
    return telemetry.Collector(tmp_path / "collector")


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    server = telemetry.Prometheus(tmp_path_factory.mktemp("prometheus"))
    with server.running():
        yield server


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory):
    server = ai_pages.Phoenix(tmp_path_factory.mktemp("phoenix"))
    with server.running():
        yield server


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory):
    server = ai_pages.Mlflow(tmp_path_factory.mktemp("mlflow"))
    with server.running():
        yield server


@pytest.fixture(scope="session")
def pushgateway():
    server = telemetry.Pushgateway()
    with server.running():
        yield server


@pytest.fixture
def agent_process(state, tmp_path):
    """Start one part of the agent, observed in `state` with these exporters and variables."""

    def start(part, exporters, patience=60, **variables):
        settings = {
            "CKPT_OBSERVE_DIR": state,
            "CKPT_OBSERVE_PAGES_DIR": tmp_path / "pages",
            "CKPT_OBSERVE_EXPORTERS": exporters,
            **variables,
        }
        environ = {**os.environ, **{name: str(value) for name, value in settings.items()}}
        command = [sys.executable, agent.__file__, part, str(tmp_path / "checkpoints"), str(patience)]
        return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    return start


@pytest.fixture
def run_agent(agent_process):
    """Run one part of the agent until it ends."""

    def run(*args, **kwargs):
        with agent_process(*args, **kwargs) as process:
            process.communicate(timeout=120)
        assert process.returncode == 0

    return run
