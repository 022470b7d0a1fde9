"""Whom a dead process's spans belong to."""

from __future__ import annotations

from ckpt_observe.endpoints import Endpoint
from ckpt_observe.exporters.otlp import OtlpExporter


def test_destinations_are_told_apart():
    """Another address or another key is another destination; neither can be read from its name."""
    exporters = [
        OtlpExporter(Endpoint(url, headers={"k": key})) for url in ("http://a:1", "http://b:1") for key in ("secret-1", "secret-2")
    ]
    assert len({exporter.identity for exporter in exporters}) == 4
    assert exporters[0].identity == OtlpExporter(Endpoint("http://a:1", headers={"k": "secret-1"})).identity
    assert not any("secret" in exporter.identity or "a:1" in exporter.identity for exporter in exporters)
