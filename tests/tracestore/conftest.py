from __future__ import annotations

import pytest

from ckpt_observe.tracestore import FILENAME, TraceReader, TraceWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / FILENAME


@pytest.fixture
def writer(path):
    writer = TraceWriter(path)
    yield writer
    writer.close()


@pytest.fixture
def reader(writer, path):
    with TraceReader(path) as reader:
        yield reader
