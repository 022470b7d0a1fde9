"""Fixtures of the tests with real libraries. Tests of a library that is not installed are not collected; `.ci/libraries` installs it."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

# Not this directory itself: `langgraph` is a namespace package, and a directory of that name on the path would become part of it.
sys.path.insert(0, str(Path(__file__).parent / "harness"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

import stores
from observation import Observation

from ckpt_observe import config, wiring
from ckpt_observe.semconv import attributes as names
from ckpt_observe.tracestore import FILENAME, TraceReader

DIRECTORY = Path(__file__).parent
EXAMPLES = DIRECTORY.parents[1] / "examples" / "libraries"
CONTENT = "what the state contains"
"""A text in the states of the tests. It must not become telemetry."""


def is_installed(library: str) -> bool:
    """Return whether the first package of the library's environment is installed."""
    file = DIRECTORY.parents[1] / ".ci" / "libraries.d" / f"{library}.txt"
    if not file.exists():
        return True  # not a library
    try:
        distribution(re.split(r"[\[=]", file.read_text(encoding="utf-8"), maxsplit=1)[0])
    except PackageNotFoundError:
        return False
    return True


collect_ignore = [path.name for path in DIRECTORY.iterdir() if path.is_dir() and not is_installed(path.name)]


@pytest.fixture
def observation(tmp_path, request):
    """Runs programs that are beside the test."""
    return Observation(tmp_path, request.path.parent)


@pytest.fixture
def operations(recording):
    """A function that returns the attributes of the operations so far, in the order of their ends."""

    def read():
        assert CONTENT not in recording.text()
        return [span.attributes for span in recording.spans() if names.OPERATION in span.attributes]

    return read


@pytest.fixture
def run_example(tmp_path):
    """A function that runs an example and returns the attributes of its operations, in the order of their starts."""

    def run(name, **settings):
        state = tmp_path / "state"
        environment = {**os.environ, "CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"), **settings}
        command = [sys.executable, str(EXAMPLES / name)]
        process = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        wiring.deliver_dead(config.read(exporters="local", dir=state), 60)  # what it had no time for at its exit
        with TraceReader(state / FILENAME) as reader:
            spans = [span for trace in reader.newest(1000) for span in reader.spans(trace.trace_id)]
        operations = [span for span in spans if names.OPERATION in span.attributes]
        return [span.attributes for span in sorted(operations, key=lambda span: span.start_unix_nano)]

    return run


@pytest.fixture
def seed():
    """A new seed for each test, printed if it fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    return seed


@pytest.fixture(scope="session")
def postgres_server():
    with stores.postgres() as (url, _):
        yield url


@pytest.fixture
def postgres_url(postgres_server, seed):
    """A new database."""
    import psycopg  # noqa: PLC0415

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE test_{seed}")
    return postgres_server.rpartition("/")[0] + f"/test_{seed}"
