"""Several real processes on one port: one serves the sum of all, another takes over, no counter goes backwards."""

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
    """A process with the endpoint, spoken to in lines."""

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

    def hear(self, *words):
        """Read until each of the words was said."""
        wanted = set(words)
        while wanted:
            line = self.process.stdout.readline()
            assert line, f"the worker ended before it said {wanted}"
            assert line != "failed\n", "the worker could not deliver"
            wanted.discard(line.strip())

    def do(self, command, answer="done"):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.hear(answer)

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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
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
    return [value for (found, given), value in page.items() if found == name and set(labels.items()) <= set(given)]


def fell(before, after):
    """Counters and buckets that went backwards or vanished."""
    growing = ("_total", "_bucket", "_count", "_sum")
    return [key for key, value in before.items() if key[0].endswith(growing) and after.get(key, -1) < value]


def test_sum_take_over_and_monotone_counters(start, scrape):
    """Two processes make one sum; when the one that serves is killed in a save, the other serves the same sum and tells of that save."""
    first = start()
    first.hear("ready", "serving")
    second = start()
    second.hear("ready")
    first.do("save 3")
    second.do("save 4")
    before = scrape()
    assert total(before) == 7
    assert gauge(before, "ckpt_observe_processes", state="live") == [2]
    first.do("hang", "hanging")
    running = scrape()
    assert gauge(running, "checkpoint_in_flight", operation="save") == [1]
    first.kill()
    second.hear("serving")
    second.do("save 1")
    after = scrape()
    assert fell(before, after) == []
    assert total(after) == 8
    assert total(after, "interrupted") == 1
    assert gauge(after, "checkpoint_in_flight", operation="save") == [0]
    second.end()


def test_restart_keeps_timestamps_and_counters(start, scrape):
    """All processes gone and one new that has saved nothing yet: it serves what was."""
    first = start()
    first.hear("ready", "serving")
    first.do("save 2")
    before = scrape()
    first.end()
    second = start()
    second.hear("ready", "serving")
    after = scrape()
    assert fell(before, after) == []
    for name in ("last_success", "last_attempt", "first_attempt"):
        kept = gauge(before, f"checkpoint_{name}_timestamp_seconds", operation="save")
        assert kept
        assert gauge(after, f"checkpoint_{name}_timestamp_seconds", operation="save") == kept
    second.end()


def test_forked_child_does_not_keep_the_port(start, scrape):
    """A child that outlives the killed server holds neither its socket nor its turn: another process takes over."""
    first = start()
    first.hear("ready", "serving")
    first.do("fork 1")
    second = start()
    second.hear("ready")
    first.kill()
    second.hear("serving")
    assert total(scrape()) == 1
    second.end()


@pytest.mark.faults
def test_killed_again_and_again_metrics_and_traces_agree(start, scrape, tmp_path):
    """Twenty processes killed at any moment of saving and delivering: every operation that is in the trace store is counted, once."""
    for _ in range(20):
        worker = start("prometheus,local")
        worker.hear("ready")
        worker.process.stdin.write("save 3000\n" * 50)
        worker.process.stdin.flush()
        time.sleep(random.uniform(0.05, 0.6))
        worker.kill()
    last = start("prometheus,local")
    last.hear("ready", "serving")
    last.do("flush")
    page = scrape()
    with sqlite3.connect(tmp_path / "state" / "traces.db") as traces:
        kept = dict(traces.execute("SELECT outcome, count(*) FROM span WHERE operation = 'save' GROUP BY outcome"))
    traces.close()
    assert {outcome: total(page, outcome) for outcome in kept} == kept
    assert kept["ok"] > 1000
