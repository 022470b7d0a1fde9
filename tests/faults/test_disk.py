"""On full and read-only disks, output and exit code of the host program are those of an unobserved run, and losses are counted.

Each program runs in its own mount namespace, in which its directories are small tmpfs mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from ckpt_observe.tracestore import TraceReader

pytestmark = pytest.mark.faults

HOST = """
import os, sys, threading, time
import ckpt_observe, ckpt_observe.auto
from ckpt_observe import api

state, pages = os.environ["CKPT_OBSERVE_DIR"], os.environ["CKPT_OBSERVE_PAGES_DIR"]

def fill(directory):
    with open(os.path.join(directory, "filler"), "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

def free(directory):
    os.unlink(os.path.join(directory, "filler"))

def save(number):
    with ckpt_observe.checkpoint("save", id=str(number)) as operation, operation.phase("write"):
        operation.set({"filler": "x" * 200})
    return number

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def is_observed():
    return api._watch is not None and api._watch._journal is not None

total = 0
"""

AT_THE_END = """
print("result", total)
sys.exit(4)
"""

FULL_AT_START = """
for directory in {directories}:
    fill(directory)
total = sum(map(save, range(500)))
if is_observed():
    api._watch.flush(60)  # exit waits two seconds, which is not enough on a busy machine
"""

FULL_WHILE_RUNNING = """
total = save(0)
fill(state)
total += sum(map(save, range(1, 3000)))
if is_observed():
    counts = api._watch._journal.pool.counts
    free(state)
    until(lambda: not api._watch._journal.pool.read_uncollected())
    api._watch.flush(30)
    with open(os.environ["TEST_COUNTS"], "w") as file:
        print(counts["lost"], file=file)
"""

PAGES_GET_FULL = """
total = save(0)
fill(pages)
started = threading.Barrier(301)
finish = threading.Event()

def hold(number):
    with ckpt_observe.checkpoint("save", id=f"held {number}") as operation, operation.phase("write"):
        started.wait(30)
        finish.wait(30)
        operation.set({"more": "y" * 900})
        for each in range(30):
            operation.add_event("event", {"text": "z" * 900})

threads = [threading.Thread(target=hold, args=(number,)) for number in range(300)]
for thread in threads:
    thread.start()
started.wait(30)
total += sum(map(save, range(1, 1000)))
finish.set()
for thread in threads:
    thread.join()
"""

READ_ONLY = """
total = save(0)
if os.environ["TEST_REMOUNT"] == "now":
    os.system(f"mount -t tmpfs -o ro none {state}")  # on top: the kernel does not remount a file system with open files
total += sum(map(save, range(1, 500)))
"""


def why_no_mounts() -> str | None:
    """Return why mounting in a namespace is not possible here, or None if it is."""
    if shutil.which("unshare") is None:
        return "needs the program unshare (util-linux)"
    result = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else f"needs root or user namespaces to mount a small tmpfs: {result.stderr.strip()}"


NO_MOUNTS = why_no_mounts()
needs_mounts = pytest.mark.skipif(NO_MOUNTS is not None, reason=NO_MOUNTS or "")


@pytest.fixture
def host(tmp_path):
    """A function that runs a program on small disks, first unobserved and then observed, and returns both results."""

    def run(code, *, state_options="size=1m", pages_options="size=2m", remount="never"):
        for name in ("state", "pages"):
            (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / "host.py").write_text(HOST + code + AT_THE_END)
        mounts = f"mount -t tmpfs -o mode=700,{state_options} none {tmp_path}/state && mount -t tmpfs -o mode=700,{pages_options} none {tmp_path}/pages"
        results = []
        for enabled in ("false", "true"):
            environment = {
                **os.environ, "CKPT_OBSERVE_ENABLED": enabled, "CKPT_OBSERVE_DIR": f"{tmp_path}/state", "CKPT_OBSERVE_PAGES_DIR": f"{tmp_path}/pages",
                "TEST_REMOUNT": remount, "TEST_COUNTS": f"{tmp_path}/counts", "TMPDIR": str(tmp_path),
            }  # fmt: skip
            after = "code=$?; cp -r state/. kept/ 2>/dev/null; exit $code"
            command = f"cd {tmp_path} && rm -rf kept && mkdir kept && {mounts} && {sys.executable} host.py; {after}"
            results.append(
                subprocess.run(
                    ["unshare", "-Urm", "sh", "-c", command], capture_output=True, text=True, env=environment, check=False, timeout=120
                )
            )
        return results

    return run


def check_same(plain, observed):
    assert (plain.returncode, plain.stderr) == (4, "")
    assert (observed.returncode, observed.stdout) == (plain.returncode, plain.stdout), observed.stderr
    assert "Bus error" not in observed.stderr


@needs_mounts
@pytest.mark.parametrize("directories", ["[state]", "[state, pages]"])
def test_full_at_start(host, directories):
    """Without room for a journal, the program runs unobserved, and one warning is logged."""
    plain, observed = host(FULL_AT_START.replace("{directories}", directories))
    check_same(plain, observed)
    assert observed.stderr.count("Checkpoints are not observed") + observed.stderr.count("Internal error in ckpt_observe") == 1
    assert "No space left" in observed.stderr


@needs_mounts
def test_pages_full_at_start(host, tmp_path):
    """Without room in the directory for pages, they are in the state directory, and everything is recorded."""
    plain, observed = host(FULL_AT_START.replace("{directories}", "[pages]"), state_options="size=32m")
    check_same(plain, observed)
    assert observed.stderr == ""
    with TraceReader(tmp_path / "kept" / "operations.db") as reader:
        assert sum(trace.operations for trace in reader.newest(1000)) == 500


@needs_mounts
def test_full_while_running(host, tmp_path):
    """If the disk of the spool fills up and is freed again, every operation is delivered or counted as lost."""
    plain, observed = host(FULL_WHILE_RUNNING, state_options="size=32m", pages_options="size=40m")
    check_same(plain, observed)
    lost = int((tmp_path / "counts").read_text())
    with TraceReader(tmp_path / "kept" / "operations.db") as reader:
        delivered = sum(trace.operations for trace in reader.newest(100_000))
    assert delivered + lost == 3000
    assert observed.stderr.count("Records are kept in memory") <= 1


@needs_mounts
def test_pages_get_full(host):
    """More concurrent operations than there is room for pages cause no SIGBUS and no error."""
    check_same(*host(PAGES_GET_FULL, state_options="size=40m", pages_options="size=700k"))


@needs_mounts
@pytest.mark.parametrize("remount", ["now", "never"])
def test_read_only(host, remount, tmp_path):
    """A disk that is read-only from the start, or becomes read-only, does not affect the program."""
    plain, observed = host(READ_ONLY, state_options="size=4m" if remount == "now" else "size=4m,ro", remount=remount)
    check_same(plain, observed)
    if remount == "now":
        assert "Cannot write" in observed.stderr
        assert "Checkpoints are not observed" not in observed.stderr
    else:
        assert observed.stderr.count("Read-only file system") == 1
        assert f"Records are stored in {tmp_path}" in observed.stderr


READ = """
mount -t tmpfs -o mode=700,size=4m none state && {python} -c 'import ckpt_observe.auto, ckpt_observe
with ckpt_observe.checkpoint("save", id="1"): pass' && mount -o remount,ro state && {python} -m ckpt_observe traces --json
"""


@needs_mounts
def test_traces_of_a_disk_that_became_read_only(tmp_path):
    """After the kernel has remounted a broken disk, its traces can still be read."""
    for name in ("state", "pages"):
        (tmp_path / name).mkdir()
    environment = {**os.environ, "CKPT_OBSERVE_DIR": f"{tmp_path}/state", "CKPT_OBSERVE_PAGES_DIR": f"{tmp_path}/pages"}
    command = ["unshare", "-Urm", "sh", "-c", READ.format(python=sys.executable)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["checkpoint.save"]
