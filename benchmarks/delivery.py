"""Measures the CPU time of our threads in the host program, idle and at a steady rate: `python -m benchmarks.delivery [SECONDS]`.

Each delivery mode runs in its own process, with the exporters `local,prometheus`. Needs Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENVIRONMENT = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
RATE = 1000
"""Saves per second, each with one phase."""


def our_cpu_seconds() -> float:
    """Return the CPU seconds used so far by the threads of ckpt_observe."""
    import threading

    threads = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("ckpt-observe")]
    return sum(int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) for thread in threads) / 1e9


def host(seconds: float) -> None:
    """Save in this process; print the CPU share idle and busy in per cent, and the microseconds per save."""
    import ckpt_observe

    watch = ckpt_observe.observe()
    save()
    watch.flush(30)
    before = our_cpu_seconds()
    time.sleep(seconds)
    idle = our_cpu_seconds() - before
    start, before, count = time.monotonic(), our_cpu_seconds(), 0
    while (now := time.monotonic()) - start < seconds:
        while count < (now - start) * RATE:
            save()
            count += 1
        time.sleep(0.002)
    busy = our_cpu_seconds() - before
    print(f"{100 * idle / seconds:.3f} {100 * busy / seconds:.2f} {1e6 * busy / count:.1f}", flush=True)
    watch.close(30)


def save() -> None:
    import ckpt_observe

    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        pass


def main(seconds: str) -> None:
    print(f"{'delivery':<10} {'idle, % of a core':>18} {f'{RATE} saves/s, % of a core':>26} {'µs per save':>12}")
    for delivery in ("in-process", "companion", "daemon"):
        with tempfile.TemporaryDirectory() as directory:
            environ = {**os.environ, **ENVIRONMENT, "CKPT_OBSERVE_DIR": directory, "CKPT_OBSERVE_DELIVERY": delivery}
            command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", "127.0.0.1:0"]
            daemon = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) if delivery == "daemon" else None
            host_command = [sys.executable, "-m", "benchmarks.delivery", "host", seconds]
            idle, busy, per_save = subprocess.run(host_command, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            print(f"{delivery:<10} {idle:>18} {busy:>26} {per_save:>12}")
            if daemon:
                daemon.terminate()
                daemon.wait()
            while list(Path(directory).glob("journals/*")):  # a companion is still delivering
                time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        host(float(sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "10")
