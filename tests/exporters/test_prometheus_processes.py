"""Several real processes on one port: one serves the totals of all, another takes over, no counter decreases."""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families


class Worker:
    """A process with the endpoint, controlled by lines on its standard input."""

    def __init__(self, directory, port, exporters):
        command = [
            sys.executable,
            str(Path(__file__).with_name("metrics_worker.py")),
            str(directory / "state"),
            str(directory / "pages"),
            exporters,
        ]
        environ = {**os.environ, "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def wait_for(self, *words):
        """Read until the worker has printed each of the words."""
        expected = set(words)
        while expected:
            line = self.process.stdout.readline()
            assert line, f"the worker ended before it printed {expected}"
            assert line != "failed\n", "the worker could not deliver"
            expected.discard(line.strip())

    def do(self, command, answer="done"):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.wait_for(answer)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path, port):
    workers = []

    def start(exporters="prometheus"):
        workers.append(Worker(tmp_path, port, exporters))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
        worker.process.stdin.close()
        worker.process.stdout.close()


@pytest.fixture
def scrape(port):
    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}

    return scrape


def total(page, outcome="ok"):
    return sum(
        value
        for (name, labels), value in page.items()
        if name == "checkpoint_operations_total" and ("outcome", outcome) in labels and ("operation", "save") in labels
    )


def gauge(page, name, **labels):
    return [value for (metric, pairs), value in page.items() if metric == name and set(labels.items()) <= set(pairs)]


def decreased(before, after):
    """Return counters and buckets that decreased or vanished."""
    growing = ("_total", "_bucket", "_count", "_sum")
    return [key for key, value in before.items() if key[0].endswith(growing) and after.get(key, -1) < value]


def test_totals_takeover_and_monotonic_counters(start, scrape):
    """Two processes have common totals. When the serving one is killed during a save, the other serves them and counts that save."""
    first = start()
    first.wait_for("ready", "serving")
    second = start()
    second.wait_for("ready")
    first.do("save 3")
    second.do("save 4")
    before = scrape()
    assert total(before) == 7
    assert gauge(before, "ckpt_observe_processes", state="live") == [2]
    first.do("hang", "hanging")
    running = scrape()
    assert gauge(running, "checkpoint_in_flight", operation="save") == [1]
    first.kill()
    second.wait_for("serving")
    second.do("save 1")
    after = scrape()
    assert decreased(before, after) == []
    assert total(after) == 8
    assert total(after, "interrupted") == 1
    assert gauge(after, "checkpoint_in_flight", operation="save") == [0]
    second.end()


def test_restart_keeps_timestamps_and_counters(start, scrape):
    """A new process that has not saved yet serves the metrics of the processes before it."""
    first = start()
    first.wait_for("ready", "serving")
    first.do("save 2")
    before = scrape()
    first.end()
    second = start()
    second.wait_for("ready", "serving")
    after = scrape()
    assert decreased(before, after) == []
    for name in ("last_success", "last_attempt", "first_attempt"):
        values = gauge(before, f"checkpoint_{name}_timestamp_seconds", operation="save")
        assert values
        assert gauge(after, f"checkpoint_{name}_timestamp_seconds", operation="save") == values
    second.end()


def test_forked_child_does_not_keep_the_port(start, scrape):
    """A child that outlives the killed serving process keeps neither its socket nor its lock, so another process takes over."""
    first = start()
    first.wait_for("ready", "serving")
    first.do("fork 1")
    second = start()
    second.wait_for("ready")
    first.kill()
    second.wait_for("serving")
    assert total(scrape()) == 1
    second.end()


@pytest.mark.faults
def test_metrics_and_traces_agree_after_many_kills(start, scrape, tmp_path):
    """After twenty processes are killed at random moments, every operation in the trace store is counted exactly once."""
    for _ in range(20):
        worker = start("prometheus,local")
        worker.wait_for("ready")
        worker.process.stdin.write("save 3000\n" * 50)
        worker.process.stdin.flush()
        time.sleep(random.uniform(0.05, 0.6))
        worker.kill()
    last = start("prometheus,local")
    last.wait_for("ready", "serving")
    last.do("flush")
    page = scrape()
    with sqlite3.connect(tmp_path / "state" / "operations.db") as traces:
        stored = dict(traces.execute("SELECT outcome, count(*) FROM operation WHERE operation = 'save' GROUP BY outcome"))
    traces.close()
    assert {outcome: total(page, outcome) for outcome in stored} == stored
    assert stored["ok"] > 1000
