"""Checkpoint metrics in a program's own prometheus_client registry."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import ckpt_observe
from ckpt_observe import PrometheusCollector, __version__, config
from ckpt_observe.exporters.prometheus import build_publishers
from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT, render
from ckpt_observe.metricstore.metric_store import FILENAME, MetricStore
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.testing.spans import make_tree

ODD = 'a"b\\c\nd{e=,} ü🧭 100%s \0 \ud800'


@pytest.fixture
def directory(tmp_path):
    """A state directory with metrics of every instrument, and a task with an odd name."""
    store = MetricStore(tmp_path / FILENAME)
    store.add_spans(make_tree(1, operations=("save", "restore"), outcome="error"))
    store.add_spans(make_tree(2, task=ODD.replace("\ud800", "")))
    store.close()
    return tmp_path


@pytest.fixture
def registry(directory):
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(directory))
    return registry


def read_page(page, parse):
    """Samples with their exemplars, and the description of each family."""
    families = list(parse(page))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): (sample.value, sample.exemplar and sample.exemplar.labels)
        for family in families
        for sample in family.samples
    }
    return samples, {family.name: (family.type, family.documentation, family.unit) for family in families}


@pytest.mark.parametrize(
    ("generate", "content_type", "parse"),
    [(generate_latest, TEXT, parse_text), (generate_openmetrics, OPENMETRICS, parse_openmetrics)],
    ids=["text", "openmetrics"],
)
def test_same_samples_as_our_endpoint(directory, registry, generate, content_type, parse):
    """Names, types, units, labels, values and exemplars are those of our own /metrics."""
    expected = read_page(render(gather(directory, __version__)[1], content_type).decode(), parse)
    samples, families = read_page(generate(registry).decode(), parse)
    assert (samples, families) == expected
    assert len(families) > 15
    assert any(exemplar for _, exemplar in samples.values()) == (content_type == OPENMETRICS)


def test_served_beside_the_metrics_of_the_program(registry):
    """The program's own server exposes its own metrics and ours."""
    Counter("program_requests", "Requests of the program.", registry=registry).inc()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            samples, _ = read_page(answer.read().decode(), parse_text)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert samples["program_requests_total", ()][0] == 1
    assert ("ckpt_observe_build_info", (("version", __version__),)) in samples


def test_registering_reads_nothing_and_detects_duplicates(tmp_path):
    """A registry learns all names without a file being opened, and rejects a second collector."""
    registry = CollectorRegistry(auto_describe=True)
    collector = PrometheusCollector(tmp_path / "state")
    registry.register(collector)
    assert not (tmp_path / "state").exists()
    assert [family.name for family in collector.describe()] == [spec.prometheus_family for spec in METRICS]
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(PrometheusCollector(tmp_path / "other"))


def damage_file(directory):
    for path in directory.glob(f"{FILENAME}*"):
        path.unlink()
    (directory / FILENAME).write_text("not a database " * 100)


def damage_tables(directory):
    with closing(sqlite3.connect(directory / FILENAME, isolation_level=None)) as connection:
        connection.execute("DELETE FROM about")


@pytest.mark.parametrize("damage", [damage_file, damage_tables])
def test_unreadable_metrics_do_not_hide_those_of_the_program(directory, registry, caplog, damage):
    """If the store is damaged, the program's own metrics are still served and one warning is logged."""
    Counter("program_requests", "Requests of the program.", registry=registry).inc()
    damage(directory)
    for _ in range(2):
        _, families = read_page(generate_latest(registry).decode(), parse_text)
        assert set(families) == {"program_requests", "program_requests_created"}
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["Checkpoint metrics"]


def test_directory_is_that_of_the_settings(directory, monkeypatch):
    """Without an argument the collector reads the state directory of the environment."""
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(directory))
    assert {family.name for family in PrometheusCollector().collect()} > {"checkpoint_operations"}


def test_label_that_cannot_be_encoded(tmp_path):
    """A label with half a character does not fail the page of the program."""
    from ckpt_observe.exporters.prometheus_collector import _clean  # noqa: PLC0415

    assert _clean(ODD).encode()


def test_port_none_serves_no_endpoint():
    """The exporter records metrics, and the program alone serves them."""
    settings = config.read({"CKPT_OBSERVE_EXPORTERS": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "none"}).prometheus
    assert build_publishers(settings, "service") == []


PROGRAM = """
import sys, urllib.request
import ckpt_observe
assert "prometheus_client" not in sys.modules
from prometheus_client import REGISTRY, start_http_server
watch = ckpt_observe.observe(exporters="prometheus", dir=sys.argv[1])
REGISTRY.register(ckpt_observe.PrometheusCollector(sys.argv[1]))
server, _ = start_http_server(0, addr="127.0.0.1")
with ckpt_observe.task("train"), ckpt_observe.checkpoint("save"):
    pass
assert watch.flush(60)
page = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60).read().decode()
[line] = [line for line in page.splitlines() if line.startswith("checkpoint_operations_total") and 'outcome="ok"' in line]
assert line.endswith(" 1.0"), line
assert "python_info" in page
watch.close()
"""


def test_program_with_its_own_server(tmp_path, monkeypatch):
    """A real program: observed, with port `none`, serves its saves on its own port."""
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "none")
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_public_name():
    """The collector is a public name of the package, imported on first use."""
    assert "PrometheusCollector" in ckpt_observe.__all__
    assert ckpt_observe.PrometheusCollector is PrometheusCollector
