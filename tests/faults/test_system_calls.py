"""What the kernel sees of an operation: nothing, while there are free pages. `tests/test_hot_path.py` shows the same without strace."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
]

SAVES = 500
HARMLESS = {"futex", "getrusage", "brk", "mmap", "munmap", "mremap", "madvise", "rt_sigreturn", "restart_syscall", "sched_yield"}
"""System calls that a thread makes to take turns with others or to allocate memory, and the reading of its resource usage. None of them
gives up the GIL."""

PROGRAM = f"""
import os, sys
import ckpt_observe

def save():
    with ckpt_observe.checkpoint("save", id="step-12", step=12) as operation:
        for name in ("serialize", "write"):
            with operation.phase(name):
                pass

def mark(name):
    try:
        os.stat("/mark-" + name)
    except OSError:
        pass

watch = ckpt_observe.observe(exporters="local", dir=sys.argv[1], pages_dir=sys.argv[1] + "-pages", service="test")
save()
while len(watch._journal.pool._free) < {SAVES * 2}:  # until the page collector has added pages
    save()
assert watch.flush(60)
mark("begin")
for _ in range({SAVES}):
    save()
mark("control")
os.urandom(1)
mark("end")
"""


def test_saves_make_no_system_call(tmp_path):
    """Between two marks, the thread that saves 500 times makes no system call that could give up the GIL. A control call is seen."""
    log = tmp_path / "log"
    command = ["strace", "-f", "-o", str(log), sys.executable, "-c", PROGRAM, str(tmp_path / "state")]
    subprocess.run(command, check=True, timeout=300)
    calls = [(match[1], match[2], line) for line in log.read_text().splitlines() if (match := re.match(r"(\d+) +(\w+)\(", line))]
    main = calls[0][0]
    calls = [(name, line) for thread, name, line in calls if thread == main]
    marks = [next(i for i, (_, line) in enumerate(calls) if f"/mark-{name}" in line) for name in ("begin", "control", "end")]
    saving, control = ({name for name, _ in calls[start + 1 : end]} for start, end in itertools.pairwise(marks))
    assert saving <= HARMLESS
    assert not control <= HARMLESS, "control: another system call is seen"
