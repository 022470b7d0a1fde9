"""Metrics in a real Prometheus and a real Pushgateway."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import servers

import ckpt_observe

pytestmark = pytest.mark.services

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@contextmanager
def started(program, *options):
    binary = shutil.which(program)
    if binary is None:
        pytest.skip(f"{program} is not installed: apt-get install {program}")
    port = servers.free_port()
    with servers.running([binary, f"--web.listen-address=127.0.0.1:{port}", *options], port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def target():
    return servers.free_port()


@pytest.fixture
def prometheus(tmp_path, target):
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 200ms}}\nscrape_configs: [{{job_name: test, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]"
    )
    options = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb", "--enable-feature=exemplar-storage")
    with started("prometheus", *options) as url:
        yield url


def ask(url, path, **query):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def until(answer, seconds=30):
    """What the server comes to answer, once it is not empty."""
    deadline = time.monotonic() + seconds
    while not (found := answer()):
        assert time.monotonic() < deadline, "the server never had it"
        time.sleep(0.05)
    return found


def saved(watch, number):
    """Saves and a failed one; their trace."""
    with ckpt_observe.task("train", id="r", interval=600) as task:
        for step in range(number):
            with ckpt_observe.checkpoint("save", step=step) as operation, operation.phase("write"):
                operation.set({"checkpoint.size.stored": 800})
        with pytest.raises(OSError), ckpt_observe.checkpoint("save"):
            raise OSError(28, "No space left on device")
    assert watch.flush()
    return task.trace_id


def test_scrape_exemplars_and_every_query_of_the_docs(prometheus, target, tmp_path, monkeypatch):
    """Prometheus has the counts, its exemplars lead to our trace, and no query of the docs is refused."""
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(target))
    watch = ckpt_observe.observe(exporters="prometheus", dir=tmp_path / "state", ring_dir=tmp_path / "pages")
    trace = saved(watch, 3)
    counted = 'sum by (outcome) (checkpoint_operations_total{operation="save"}) > 0'
    until(lambda: {each["metric"]["outcome"]: each["value"][1] for each in ask(prometheus, "query", query=counted)["result"]} == {"ok": "3", "error": "1"})
    span = {"start": time.time() - 600, "end": time.time() + 600}
    series = until(lambda: ask(prometheus, "query_exemplars", query="checkpoint_operation_duration_seconds_bucket", **span))
    assert {each["labels"]["trace_id"] for one in series for each in one["exemplars"]} == {trace}
    queries = re.findall(r"```promql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(queries) > 10
    for query in queries:
        assert "result" in ask(prometheus, "query", query=query), query
    watch.close()


def test_pushgateway_has_the_sum_of_all_runs(tmp_path, monkeypatch):
    """Two runs of a batch job, each gone before anybody scrapes: the gateway has what both did."""
    with started("prometheus-pushgateway" if shutil.which("prometheus-pushgateway") else "pushgateway") as url:
        monkeypatch.setenv("CKPT_OBSERVE_METRICS_PUSHGATEWAY", url)
        for run in (1, 2):
            watch = ckpt_observe.observe(exporters="prometheus", dir=tmp_path / "state", ring_dir=tmp_path / "pages", service="nightly")
            saved(watch, run)
            watch.close()
        [group] = [each for each in ask(url, "metrics") if each["labels"]["job"] == "nightly"]
        counts = {each["labels"]["outcome"]: each["value"] for each in group["checkpoint_operations_total"]["metrics"] if each["value"] != "0"}
        assert counts == {"ok": "3", "error": "2"}
