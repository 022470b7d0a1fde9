"""What it takes from the call to OTLP bytes: `python -m benchmarks.export`.

One process, one run, turn and turn about, in CPU seconds of the whole process: the saves of `benchmarks.nothing` with four phases each,
(a) by hand on the OpenTelemetry SDK and through its OTLP encoder, (b) patched, recorded, collected into the spool, read from
there, assembled and encoded. What the library itself takes is subtracted from both. No socket is opened.
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


def cpu(call: Callable[[], Any]) -> float:
    gc.collect()
    begin = time.process_time()
    call()
    return time.process_time() - begin


def saves(library: Library) -> Callable[[], None]:
    def run() -> None:
        for step in range(SAVES):
            library.save("run-42", None, step=step)

    return run


def by_sdk(memory: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    spans = memory.get_finished_spans()
    memory.clear()
    return spans


def sdk_bytes(spans: Sequence[ReadableSpan]) -> list[bytes]:
    return [encode_spans(spans[first : first + BATCH]).SerializeToString() for first in range(0, len(spans), BATCH)]


def collected(journal: Journal, library: Library) -> Callable[[], None]:
    def run() -> None:
        for step in range(SAVES):
            library.save("run-42", None, step=step)
            if step % 100 == 99:
                journal.pool.make_room()
                journal.pool.collect()

    return run


def our_bytes(directory: str, cursor: spool.Cursor) -> Iterator[bytes]:
    """Read from the spool, assembled, encoded: what the delivery does for an exporter."""
    while (records := spool.read(directory, cursor)).payloads:
        cursor = records.end
        for first in range(0, len(records.payloads), BATCH // SPANS):
            payloads = records.payloads[first : first + BATCH // SPANS]
            yield encode([span for payload in payloads for span in assemble(payload, RESOURCE)], __version__)


def end_of(directory: str, cursor: spool.Cursor) -> spool.Cursor:
    while (records := spool.read(directory, cursor)).payloads:
        cursor = records.end
    return cursor


def spans_in(requests: Sequence[bytes]) -> int:
    found = [ExportTraceServiceRequest.FromString(request) for request in requests]
    return sum(len(scope.spans) for request in found for resource in request.resource_spans for scope in resource.scope_spans)


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
            times["bare"].append(cpu(saves(bare)))
            times["sdk spans"].append(cpu(saves(by_hand)))
            finished = by_sdk(memory)
            times["sdk encoder"].append(cpu(lambda spans=finished: sdk_bytes(spans)))
            instrumentor.instrument()
            times["our records"].append(cpu(collected(journal, bare)))
            instrumentor.uninstrument()
            times["our delivery"].append(cpu(lambda cursor=cursor: list(our_bytes(journal.directory, cursor))))
            assert spans_in(list(our_bytes(journal.directory, cursor))) == spans_in(sdk_bytes(finished)) == SAVES * SPANS
            cursor = end_of(journal.directory, cursor)
        recorder.stop()
        journal.remove()
    report({name: min(values) for name, values in times.items()})


def report(best: dict[str, float]) -> None:
    for name, seconds in best.items():
        print(f"{name:12} {seconds / SAVES * 1e6:8.1f} µs of CPU a save   {SAVES * SPANS / seconds:10,.0f} spans a CPU second")
    sdk = best["sdk spans"] - best["bare"] + best["sdk encoder"]
    ours = best["our records"] - best["bare"] + best["our delivery"]
    print(f"call to OTLP bytes  ours : sdk   1 : {sdk / ours:.1f}   (budget: 1 : 4)")
    print(f"delivery : sdk encoder alone, spans a CPU second   {best['sdk encoder'] / best['our delivery']:.1f} : 1   (budget: 3 : 1)")


if __name__ == "__main__":
    main()
