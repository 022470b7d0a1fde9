"""Measures the CPU time from a save to OTLP bytes: `python -m benchmarks.export`.

Both sides run alternately in one process, with the saves of `benchmarks.nothing` (four phases each): (a) spans written by hand with the
OpenTelemetry SDK and its OTLP encoder, (b) patched, recorded, collected into the spool, read, assembled and encoded. The time of the
library itself is subtracted from both. No socket is opened.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.nothing import ByHand, Library, NothingInstrumentor
from ckpt_observe import __version__
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.exporters.otlp_encoding import encode
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.recorder import recorder

TURNS, SAVES, SPANS, BATCH = 8, 500, 5, 512
RESOURCE = {"service.name": "benchmark", "process.pid": 1}


def cpu_seconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def run_saves(library: Library) -> Callable[[], None]:
    def run() -> None:
        for step in range(SAVES):
            library.save("run-42", None, step=step)

    return run


def take_sdk_spans(memory: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    spans = memory.get_finished_spans()
    memory.clear()
    return spans


def encode_sdk_spans(spans: Sequence[ReadableSpan]) -> list[bytes]:
    return [encode_spans(spans[first : first + BATCH]).SerializeToString() for first in range(0, len(spans), BATCH)]


def run_recorded_saves(journal: Journal, library: Library) -> Callable[[], None]:
    def run() -> None:
        for step in range(SAVES):
            library.save("run-42", None, step=step)
            if step % 100 == 99:
                journal.pool.make_room()
                journal.pool.collect()

    return run


def encode_our_records(directory: str, cursor: spool.Cursor) -> Iterator[bytes]:
    """Read records from the spool, assemble and encode them, as delivery does for the OTLP exporter."""
    while (records := spool.read(directory, cursor)).payloads:
        cursor = records.end
        for first in range(0, len(records.payloads), BATCH // SPANS):
            payloads = records.payloads[first : first + BATCH // SPANS]
            yield encode([span for payload in payloads for span in assemble(payload, RESOURCE)], __version__)


def end_of_spool(directory: str, cursor: spool.Cursor) -> spool.Cursor:
    while (records := spool.read(directory, cursor)).payloads:
        cursor = records.end
    return cursor


def count_spans(requests: Sequence[bytes]) -> int:
    messages = [ExportTraceServiceRequest.FromString(request) for request in requests]
    return sum(len(scope.spans) for message in messages for resource in message.resource_spans for scope in resource.scope_spans)


def main() -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    bare, by_hand, instrumentor = Library(), ByHand(provider.get_tracer("by hand")), NothingInstrumentor()
    times: dict[str, list[float]] = {name: [] for name in ("bare", "sdk spans", "sdk encoder", "our records", "our delivery")}
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory), None, ["otlp"], RESOURCE)
        recorder.start(journal.take)
        cursor = spool.Cursor()
        for _ in range(TURNS):
            times["bare"].append(cpu_seconds(run_saves(bare)))
            times["sdk spans"].append(cpu_seconds(run_saves(by_hand)))
            sdk_spans = take_sdk_spans(memory)
            times["sdk encoder"].append(cpu_seconds(lambda spans=sdk_spans: encode_sdk_spans(spans)))
            instrumentor.instrument()
            times["our records"].append(cpu_seconds(run_recorded_saves(journal, bare)))
            instrumentor.uninstrument()
            times["our delivery"].append(cpu_seconds(lambda cursor=cursor: list(encode_our_records(journal.directory, cursor))))
            assert (
                count_spans(list(encode_our_records(journal.directory, cursor)))
                == count_spans(encode_sdk_spans(sdk_spans))
                == SAVES * SPANS
            )
            cursor = end_of_spool(journal.directory, cursor)
        recorder.stop()
        journal.remove()
    report({name: min(values) for name, values in times.items()})


def report(best: dict[str, float]) -> None:
    for name, seconds in best.items():
        print(f"{name:12} {seconds / SAVES * 1e6:8.1f} µs of CPU per save   {SAVES * SPANS / seconds:10,.0f} spans per CPU second")
    sdk = best["sdk spans"] - best["bare"] + best["sdk encoder"]
    ours = best["our records"] - best["bare"] + best["our delivery"]
    print(f"call to OTLP bytes  ours : sdk   1 : {sdk / ours:.1f}   (budget: 1 : 4)")
    print(f"delivery : sdk encoder alone, spans per CPU second   {best['sdk encoder'] / best['our delivery']:.1f} : 1   (budget: 3 : 1)")


if __name__ == "__main__":
    main()
