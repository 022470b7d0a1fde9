"""Measures the cost of 1,000 saves per second with all exporters: `python -m benchmarks.load`.

Each row is one process. It runs the saves of `benchmarks.nothing` at a steady rate for ten seconds and exports to the local store, to an
OTLP server and to `/metrics`, which is scraped every second. `delivery` is the CPU time of all threads except the one that saves, in per
cent of a core, also by thread; `save` is the time that a save takes the caller. The first save is delivered before the measurement, so
that imports, new files and new connections do not count. The OTLP server is up, down (connection refused) or silent (never answers). The
last row is the same saves with spans written by hand with the OpenTelemetry SDK, only to the OTLP server.
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


def save_steadily(library: Library) -> tuple[list[float], float]:
    """Save at a steady rate. Return the sorted times of all saves in µs, and the CPU seconds of this thread."""
    times, start, cpu = [], time.perf_counter(), time.thread_time()
    for number in range(SAVES_PER_SECOND * SECONDS):
        wait = start + number / SAVES_PER_SECOND - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        before = time.perf_counter_ns()
        library.save("run-42", None, step=number)
        times.append((time.perf_counter_ns() - before) / 1000)
    return sorted(times), time.thread_time() - cpu


def report(times: list[float], delivery_cpu: float, details: str) -> None:
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(f"delivery {100 * delivery_cpu / SECONDS:5.1f} % of a core   save p50 {p50:6.1f}  p99 {p99:7.1f} µs   {details}")


def ours() -> None:
    import ckpt_observe

    metrics = os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"]
    watch = ckpt_observe.observe(exporters="local,otlp,prometheus", service="load", enabled=True)
    NothingInstrumentor().instrument()
    scraper = subprocess.Popen([sys.executable, "-m", "benchmarks.load", "scrape", metrics])
    library = Library()
    library.save("run-42", None, step=0)
    watch.flush(timeout=1)
    cpu, cpu_by_thread = time.process_time(), measure_threads()
    times, caller_cpu = save_steadily(library)
    watch.flush(timeout=1)  # nothing of the work is left out, unless the server is down
    delivery_cpu = time.process_time() - cpu - caller_cpu
    shares = ", ".join(
        f"{thread.name.removeprefix('ckpt-observe-')} {100 * (seconds - cpu_by_thread.get(thread, 0.0)) / SECONDS:.1f} %"
        for thread, seconds in measure_threads().items()
    )
    scraper.kill()
    scraper.wait()
    health = watch._delivery.health() if watch._delivery else {}
    delivered = {labels[0]: int(count) for (name, labels), count in health.items() if name == "ckpt_observe.delivered" and labels}
    watch.close(timeout=1)
    report(times, delivery_cpu, f"delivered so far {delivered}\n{'':20}{shares}")


def measure_threads() -> dict[threading.Thread, float]:
    """Return the CPU seconds that each thread has used, in steps of a hundredth."""
    seconds = {}
    for thread in threading.enumerate():
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
            ticks = sum(int(field) for field in file.read().rpartition(")")[2].split()[11:13])
        seconds[thread] = ticks / os.sysconf("SC_CLK_TCK")
    return seconds


def sdk() -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=2**16))
    library = ByHand(provider.get_tracer("by hand"))
    library.save("run-42", None, step=0)
    provider.force_flush()
    cpu = time.process_time()
    times, caller_cpu = save_steadily(library)
    provider.force_flush()
    report(times, time.process_time() - cpu - caller_cpu, "OTLP only")
    os._exit(0)


class OtlpHandler(http.server.BaseHTTPRequestHandler):
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            response.read()
        time.sleep(1)


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtlpHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed, tempfile.TemporaryDirectory() as state:
        closed.bind(("127.0.0.1", 0))  # not listening, so connections are refused
        ports = {"up": server.server_port, "down": closed.getsockname()[1], "silent": silent.getsockname()[1]}
        for program, server_state in (("ours", "up"), ("ours", "down"), ("ours", "silent"), ("sdk", "up")):
            environ = {
                **os.environ,
                "CKPT_OBSERVE_DIR": os.path.join(state, server_state),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[server_state]}",
                "OTEL_EXPORTER_PROMETHEUS_PORT": str(_free_port()),
            }
            print(f"{program:4} server {server_state:6}  ", end="", flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks.load", program], env=environ, check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    {"ours": ours, "sdk": sdk, "scrape": scrape}.get(sys.argv[1] if sys.argv[1:] else "", main)(*sys.argv[2:])
