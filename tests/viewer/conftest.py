"""A viewer over a state directory in which a program has recorded something, in this process and without a browser."""

from __future__ import annotations

import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import SerializationError
from tests.viewer.address import BASE, PORT, TOKEN


@pytest.fixture
def record(tmp_path):
    """A function that calls `work` with a watch, under observation, and delivers what it recorded."""

    def run(work):
        watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages", service="trainer")
        try:
            work(watch)
            assert watch.flush(timeout=60)
        finally:
            watch.close(10)

    return run


@pytest.fixture
def training(record, tmp_path):
    """A run of three good saves, of which a key grows, and a failed one."""

    def train(_watch):
        checkpointer = Checkpointer(str(tmp_path / "checkpoints"))
        with ckpt_observe.task("train", id="run-42", total_steps=30):
            for step in (1, 2, 3):
                checkpointer.save("run-42", {"weights": "w" * 1000 * step, "step": step}, step=step)
            with pytest.raises(SerializationError):
                checkpointer.save("run-42", {"socket": object()}, step=4)

    record(train)


@pytest.fixture
def application(tmp_path):
    application = pytest.importorskip("ckpt_observe.viewer.application", exc_type=ModuleNotFoundError)
    return application.create_application(tmp_path / "state", token=TOKEN, port=PORT, adopt=lambda: None)


@pytest.fixture
def stranger(application):
    """A client without a session."""
    pytest.importorskip("httpx2")
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application, base_url=BASE, follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(stranger):
    """A client with a session."""
    assert stranger.get("/", params={"token": TOKEN}).status_code == 303
    return stranger
