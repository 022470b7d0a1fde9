"""A Collector that is away: what was recorded in the meantime arrives later, all of it, once."""

from __future__ import annotations

import pytest
import received
from processes import eventually

pytestmark = pytest.mark.services

PROTOCOLS = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


def arrived(collector):
    return {span.span_id for span in received.of_collector(collector.file)}


@PROTOCOLS
def test_away_for_the_whole_run(collector, run_agent, state, protocol):
    """F: the run ends without the Collector and nobody waits for it; the next process delivers what it owed, 0 lost, 0 doubled."""
    run_agent("work", "otlp,local", patience=1, **collector.variables(protocol))
    assert not collector.file.exists()
    with collector.running():
        run_agent("resume", "otlp,local", **collector.variables(protocol))
    kept = received.of_local_store(state)
    assert len({span.trace_id for span in kept}) == 2
    assert received.of_collector(collector.file) == kept


@PROTOCOLS
def test_restarted_in_the_middle(collector, agent_process, state, protocol):
    """F: a Collector that is stopped and started again in the middle of a run gets every span, and none twice."""
    with agent_process("steps", "otlp,local", **collector.variables(protocol)) as process:

        def save(times):
            process.stdin.write(b"\n" * times)
            process.stdin.flush()
            assert [process.stdout.readline() for _ in range(times)] == [b"saved\n"] * times

        with collector.running():
            save(20)
            eventually(lambda: arrived(collector), "spans arrive")
            save(20)
        before = arrived(collector)
        save(20)
        with collector.running():
            save(20)
            eventually(lambda: arrived(collector) - before, "spans arrive again")
            process.communicate(timeout=60)
    kept = received.of_local_store(state)
    assert sum(span.name == "checkpoint.save" for span in kept) == 80
    assert received.of_collector(collector.file) == kept
