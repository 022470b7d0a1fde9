"""What a thousand saves a second take with every exporter on: `python -m benchmarks.load`.

Each row is a process of its own: the saves of `benchmarks.nothing` at a steady pace for ten seconds, to the local store, to an OTLP server
and to a `/metrics` that is scraped every second. `delivery` is the CPU of all threads but the one that saves, in per cent of a core, and by
thread; `save` is what a save took of the caller's time. The server is there, or nobody listens, or somebody does and never answers.
Last, the same saves by hand on the OpenTelemetry SDK, to the OTLP server alone.
"""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from typing import Any

from benchmarks.nothing import ByHand, Library, NothingInstrumentor

SAVES_PER_SECOND, SECONDS = 1000, 10


def steady(library: Library) -> tuple[list[float], float]:
    """The time of each save in µs, and the CPU seconds of this thread."""
    took, begin, cpu = [], time.perf_counter(), time.thread_time()
    for number in range(SAVES_PER_SECOND * SECONDS):
        wait = begin + number / SAVES_PER_SECOND - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        before = time.perf_counter_ns()
        library.save("run-42", None, step=number)
        took.append((time.perf_counter_ns() - before) / 1000)
    return sorted(took), time.thread_time() - cpu


def told(took: list[float], others: float, rest: str) -> None:
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    print(f"delivery {100 * others / SECONDS:5.1f} % of a core   save p50 {p50:6.1f}  p99 {p99:7.1f} µs   {rest}")


def ours() -> None:
    import ckpt_observe

    metrics = os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"]
    watch = ckpt_observe.observe(exporters="local,otlp,prometheus", service="load", enabled=True)
    NothingInstrumentor().instrument()
    scraper = subprocess.Popen([sys.executable, "-m", "benchmarks.load", "scrape", metrics])
    library = Library()
    library.save("run-42", None, step=0)
    cpu = time.process_time()
    took, own = steady(library)
    others = time.process_time() - cpu - own
    shares = by_thread()
    scraper.kill()
    scraper.wait()
    health = watch._delivery.health() if watch._delivery else {}
    delivered = {labels[0]: int(count) for (name, labels), count in health.items() if name == "ckpt_observe.delivered" and labels}
    watch.close(timeout=1)
    told(took, others, f"delivered by then {delivered}\n{'':20}{shares}")


def by_thread() -> str:
    shares = []
    for thread in threading.enumerate():
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
            ticks = sum(int(each) for each in file.read().rpartition(")")[2].split()[11:13])
        shares.append(f"{thread.name.removeprefix('ckpt-observe-')} {100 * ticks / os.sysconf('SC_CLK_TCK') / SECONDS:.1f} %")
    return ", ".join(shares)


def sdk() -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=2**16))
    cpu = time.process_time()
    took, own = steady(ByHand(provider.get_tracer("by hand")))
    told(took, time.process_time() - cpu - own, "OTLP only")
    os._exit(0)


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def scrape(port: str) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            answer.read()
        time.sleep(1)


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as nobody, tempfile.TemporaryDirectory() as state:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        ports = {"there": server.server_port, "away": nobody.getsockname()[1], "silent": silent.getsockname()[1]}
        for what, where in (("ours", "there"), ("ours", "away"), ("ours", "silent"), ("sdk", "there")):
            environ = {
                **os.environ,
                "CKPT_OBSERVE_DIR": os.path.join(state, where),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[where]}",
                "OTEL_EXPORTER_PROMETHEUS_PORT": str(_free_port()),
            }
            print(f"{what:4} server {where:6}  ", end="", flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks.load", what], env=environ, check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    {"ours": ours, "sdk": sdk, "scrape": scrape}.get(sys.argv[1] if sys.argv[1:] else "", main)(*sys.argv[2:])
