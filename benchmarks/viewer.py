"""Measures the viewer on a large store: `python -m benchmarks.viewer [SPANS]` (default: a million).

The first page and a search are requested over HTTP from a server in another process, with a session, as a browser does. The peer is the
same SQL query alone: the newest operations with their attributes, read with the sqlite3 module and not looked at. The last line is the
memory of the server after all requests.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path

from benchmarks.traces import best_time, write_all
from ckpt_observe.tracestore import FILENAME, TraceLimits, TraceWriter
from ckpt_observe.viewer.page_data import NEWEST

SPANS, SPANS_PER_OPERATION = 1_000_000, 5
BUDGET = 3.0
"""What a page may take, as a multiple of its SQL query alone."""
QUERY = "SELECT * FROM operation JOIN trace ON trace.id = operation.trace ORDER BY operation.end_unix_nano DESC LIMIT ?"


def open_viewer(process: subprocess.Popen[str]) -> Callable[[str], bytes]:
    """Return a function that requests a page, with a session."""
    assert process.stdout is not None
    address = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(address).read()
    base = address.partition("?")[0]
    return lambda path: opener.open(base + path).read()


def query_alone(path: Path) -> Callable[[], object]:
    connection = sqlite3.connect(path)
    return lambda: connection.execute(QUERY, (NEWEST,)).fetchall()


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


def main() -> int:
    count = int(sys.argv[1] if sys.argv[1:] else SPANS) // SPANS_PER_OPERATION
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        writer = TraceWriter(state / FILENAME, TraceLimits(0, 0))
        write_all(writer.write, count)
        writer.close()
        command = [sys.executable, "-m", "ckpt_observe", "ui", "--no-browser", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                request = open_viewer(process)
                alone = best_time(query_alone(state / FILENAME))
                ratios = []
                for label, path in (("first page", "api/overview"), ("search", "api/operations?text=no+space")):
                    milliseconds = best_time(lambda path=path: request(path))  # type: ignore[misc]
                    ratios.append(milliseconds / alone)
                    print(
                        f"{label:12} {milliseconds:8.1f} ms   its query alone {alone:8.1f} ms   {ratios[-1]:5.1f} x (budget {BUDGET:g} x)"
                    )
                print(f"memory       {resident_bytes(process.pid) / 1e6:8.0f} MB at most, with {count * SPANS_PER_OPERATION} spans")
            finally:
                process.terminate()
    return int(max(ratios) > BUDGET)


if __name__ == "__main__":
    began = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - began:.0f} s")
    sys.exit(code)
