"""Loopback servers for the exporters that send."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import collectors


@pytest.fixture
def collector():
    with collectors.HttpCollector() as running:
        yield running


@pytest.fixture
def tls_collector():
    with collectors.HttpCollector(tls=True) as running:
        yield running


@pytest.fixture
def grpc_collector():
    with collectors.GrpcCollector() as running:
        yield running
