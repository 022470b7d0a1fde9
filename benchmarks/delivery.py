"""What a delivery takes from its host: CPU of our threads in the process that saves, idle and at a steady rate, wherever the delivery is.

`python -m benchmarks.delivery [SECONDS]`, on Linux. Each in a process of its own; the exporters are `local,prometheus`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIVEN = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
RATE = 1000
"""Saves a second, each with a phase."""


def ours() -> float:
    """CPU seconds that the threads of ckpt_observe have had."""
    import threading

    threads = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("ckpt-observe")]
    return sum(int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) for thread in threads) / 1e9


def host(seconds: float) -> None:
    import ckpt_observe

    watch = ckpt_observe.observe()
    save()
    watch.flush(30)
    before = ours()
    time.sleep(seconds)
    idle = ours() - before
    began, before, number = time.monotonic(), ours(), 0
    while (now := time.monotonic()) - began < seconds:
        while number < (now - began) * RATE:
            save()
            number += 1
        time.sleep(0.002)
    busy = ours() - before
    print(f"{100 * idle / seconds:.3f} {100 * busy / seconds:.2f} {1e6 * busy / number:.1f}", flush=True)
    watch.close(30)


def save() -> None:
    import ckpt_observe

    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        pass


def main(seconds: str) -> None:
    print(f"{'delivery':<10} {'idle, % of a core':>18} {f'{RATE} saves/s, % of a core':>26} {'us a save':>10}")
    for delivery in ("in-process", "companion", "daemon"):
        with tempfile.TemporaryDirectory() as directory:
            environ = {**os.environ, **GIVEN, "CKPT_OBSERVE_DIR": directory, "CKPT_OBSERVE_DELIVERY": delivery}
            command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", "127.0.0.1:0"]
            daemon = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) if delivery == "daemon" else None
            measured = [sys.executable, "-m", "benchmarks.delivery", "host", seconds]
            idle, busy, each = subprocess.run(measured, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            print(f"{delivery:<10} {idle:>18} {busy:>26} {each:>10}")
            if daemon:
                daemon.terminate()
                daemon.wait()
            while list(Path(directory).glob("journals/*")):  # a companion is still at it
                time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        host(float(sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "10")
