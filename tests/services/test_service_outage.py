"""If an OTel Collector is down, what is recorded meanwhile arrives later, completely and once."""

from __future__ import annotations

import backend_spans
import pytest
from processes import eventually

pytestmark = pytest.mark.services

PROTOCOLS = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


def span_ids(collector):
    return {span.span_id for span in backend_spans.from_collector(collector.file)}


@PROTOCOLS
def test_down_for_the_whole_run(collector, run_agent, state, protocol):
    """The run ends without waiting for the OTel Collector; the next process delivers its spans without loss or duplicates."""
    run_agent("work", "otlp,local", patience=1, **collector.variables(protocol))
    assert not collector.file.exists()
    with collector.running():
        run_agent("resume", "otlp,local", **collector.variables(protocol))
    stored = backend_spans.from_local_store(state)
    assert len({span.trace_id for span in stored}) == 2
    assert backend_spans.from_collector(collector.file) == stored


@PROTOCOLS
def test_restarted_during_the_run(collector, agent_process, state, protocol):
    """An OTel Collector that is restarted during a run gets every span once."""
    with agent_process("steps", "otlp,local", **collector.variables(protocol)) as process:

        def save(times):
            process.stdin.write(b"\n" * times)
            process.stdin.flush()
            assert [process.stdout.readline() for _ in range(times)] == [b"saved\n"] * times

        with collector.running():
            save(20)
            eventually(lambda: span_ids(collector), "spans arrive")
            save(20)
        before = span_ids(collector)
        save(20)
        with collector.running():
            save(20)
            eventually(lambda: span_ids(collector) - before, "spans arrive again")
            process.communicate(timeout=60)
    stored = backend_spans.from_local_store(state)
    assert sum(span.name == "checkpoint.save" for span in stored) == 80
    assert backend_spans.from_collector(collector.file) == stored
