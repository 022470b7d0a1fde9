"""Forks while another thread uses SQLite: the child can use the same file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckpt_observe.support.fork_gate import ForkGate
from tests.record.interruptions import interrupt_everywhere

PROGRAM = """
import os, sqlite3, sys, threading
from ckpt_observe.support import sqlite
{without_gate}

connection = sqlite.connect(sys.argv[1], busy_seconds=0.5)
sqlite.enable_wal(connection)
connection.execute("CREATE TABLE numbers (number)")
is_open, is_forking = threading.Event(), threading.Event()
os.register_at_fork(before=is_forking.set)  # registered last, it runs first

def write():
    with sqlite.transaction(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")
        is_open.set()
        assert is_forking.wait(50)

thread = threading.Thread(target=write)
thread.start()
is_open.wait()
child = os.fork()
if child == 0:
    try:
        other = sqlite.connect(sys.argv[1], busy_seconds=0.5)
        with sqlite.transaction(other):
            other.execute("INSERT INTO numbers VALUES (2)")
        print("child wrote", flush=True)
    except sqlite3.Error as error:
        print("child:", error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join()
with sqlite.transaction(connection):
    print([number for number, in connection.execute("SELECT number FROM numbers ORDER BY number")])
"""


def run(tmp_path, program):
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "db"], capture_output=True, text=True, timeout=100, check=False)
    return done.stdout.splitlines() or done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_waits_for_a_transaction(tmp_path):
    """A child that is forked while another thread is in a transaction gets the file after it, and can write."""
    assert run(tmp_path, PROGRAM.format(without_gate="")) == ["child wrote", "[1, 2]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_without_the_gate_the_child_is_locked_out(tmp_path):
    """Control: without waiting, the child inherits a lock that nobody can release. The parent is not affected."""
    without_gate = "sqlite._fork_gate._blocks = type('Never', (dict,), {'__missing__': lambda *_: 0, '__setitem__': lambda *_: None, '__delitem__': lambda *_: None})()"
    assert run(tmp_path, PROGRAM.format(without_gate=without_gate)) == ["child: database is locked", "[1]"]


STORE = """
import os, sys, threading
from ckpt_observe.core import Checkpointer

checkpointer = Checkpointer("sqlite://" + sys.argv[1])
checkpointer.save("task", {"step": 1})
is_open, is_forking = threading.Event(), threading.Event()
os.register_at_fork(before=is_forking.set)

def save():
    with checkpointer.store._transaction("saving"):
        is_open.set()
        assert is_forking.wait(50)

thread = threading.Thread(target=save)
thread.start()
is_open.wait()
child = os.fork()
if child == 0:
    try:
        Checkpointer("sqlite://" + sys.argv[1]).save("task", {"step": 2})
        print("child saved", flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_during_a_save_of_the_core(tmp_path):
    """A child that is forked while another thread saves can save to the same SQLite store."""
    assert run(tmp_path, STORE) == ["child saved"]


NESTED = """
import os, sys
from ckpt_observe.support import sqlite
connection = sqlite.connect(sys.argv[1], busy_seconds=0.5)
with sqlite.transaction(connection):
    child = os.fork()
    if child == 0:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert not sqlite._fork_gate._blocks
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_inside_a_transaction(tmp_path):
    """A thread that forks within its own transaction does not wait for itself."""
    assert run(tmp_path, NESTED) == ["7"]


CREATED_MEANWHILE = """
import os, sys
from ckpt_observe.support import fork_gate
gates = []
os.register_at_fork(before=lambda: gates.append(fork_gate.ForkGate()))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
fork_gate.FORK_TIMEOUT = 1000
with gates[0]:
    print("entered")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_gate_that_is_created_during_a_fork(tmp_path):
    """A gate that is created after a fork has begun does not wait for forks that are over: a thread may import SQLite at that moment."""
    assert run(tmp_path, CREATED_MEANWHILE) == ["entered"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_signal_handler_forks_in_the_gate():
    """The child goes on below the signal handler: it leaves the gate as if nothing had happened, and can enter it again."""
    gate, codes, is_child = ForkGate(), [], False

    def fork(_signum, _frame):
        nonlocal is_child
        child = os.fork()
        is_child = not child
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def use_gate():
        code = 1
        try:
            with gate:
                pass
            with gate:
                code = 0
        finally:
            if is_child:
                os._exit(code)

    places = [place for place, _ in interrupt_everywhere(use_gate, function=fork)]
    assert {place: code for place, code in zip(places, codes, strict=True) if code} == {}
    assert any(place.startswith("ForkGate.__exit__") for place in places)
