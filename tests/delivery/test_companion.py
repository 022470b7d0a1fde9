"""The companion is shared by all processes, starts on demand, exits when it is not needed, and loses nothing if any process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import ckpt_observe
from ckpt_observe import config, exporter_selection
from ckpt_observe.delivery import companion
from ckpt_observe.delivery.companion import Companion
from tests.delivery.conftest import until
from tests.delivery.rig import (
    TIMEOUT,
    Host,
    clean_up,
    companion_is_running,
    companions,
    end_companions,
    environ,
    is_empty,
    outcomes,
    processes,
)

pytestmark = pytest.mark.faults  # starts several processes; about half a minute in total


@pytest.fixture
def start(state):
    """`start()` returns a host program with a companion. All are killed at the end."""
    hosts = []

    def start(**more):
        hosts.append(Host(environ(state, "companion", **more)))
        return hosts[-1]

    yield start
    for host in hosts:
        clean_up(host.process)
    end_companions(state)


def test_life_cycle(start, state):
    """Two processes share a companion, which is not their child and leaves no zombie. It exits after them, and no journal remains."""
    first, second = start(), start()
    first.run("save a 3")
    second.run("save b 3")
    for host in (first, second):
        host.run("flush")
    assert outcomes(state) == {f"{host} {number}": "ok" for host in "ab" for number in range(3)}
    assert len(companions(state)) == 1
    until(lambda: first.zombies() + second.zombies() == [], TIMEOUT)
    assert (first.end(), second.end()) == ("", "")
    until(lambda: companions(state) == [] and is_empty(state), TIMEOUT)


def test_killed_host_is_reported(start, state):
    """A save that was cut short by kill -9 is stored as interrupted, although no other process starts. Then the companion exits."""
    host = start()
    host.run("save a 1")
    host.run("hang b")
    host.kill()
    until(lambda: outcomes(state) == {"a 0": "ok", "b": "interrupted"}, TIMEOUT)
    until(lambda: companions(state) == [] and is_empty(state), TIMEOUT)


def test_killed_companion_is_replaced(start, state):
    """The host program starts another one, which continues where the first stopped: nothing is lost or delivered twice."""
    host = start()
    host.run("save a 20")
    host.run("flush")
    [killed] = companions(state)
    os.kill(killed, signal.SIGKILL)
    host.run("save b 20")
    host.run("flush")
    assert outcomes(state) == {f"{key} {number}": "ok" for key in "ab" for number in range(20)}
    assert killed not in companions(state)
    until(lambda: host.zombies() == [], TIMEOUT)
    assert host.end() == ""


def test_forked_child(start, state):
    """A forked child has its own journal, and its death is noticed while its parent lives."""
    host = start()
    host.run("save a 1")
    host.run("fork c")
    until(lambda: outcomes(state) == {"a 0": "ok", "c ended": "ok", "c open": "interrupted"}, TIMEOUT)
    assert len(companions(state)) == 1


def test_short_program(state):
    """A program that exits before its companion has started does not wait for it, and its pipes are closed at exit."""
    code = "import ckpt_observe.auto\nwith ckpt_observe.checkpoint('save', id='a'): pass"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(state, "companion"), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    until(lambda: outcomes(state) == {"a": "ok"}, TIMEOUT)
    until(lambda: companions(state) == [] and is_empty(state), TIMEOUT)


def test_inherits_nothing(start, state):
    """The companion inherits no descriptor, terminal, session or signals. Keys come from the environment, never from arguments."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # a mistake that host programs make
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import ckpt_observe, sys\nckpt_observe.observe()\nwith ckpt_observe.checkpoint('save', id='a'): pass\nprint(flush=True)\nsys.stdin.read()",
        ],
        env=environ(
            state,
            "companion",
            CKPT_OBSERVE_EXPORTERS="otlp,local",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
            OTEL_EXPORTER_OTLP_HEADERS="key=sk-secret",
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[writer],
    )
    os.close(writer)
    try:
        process.stdout.readline()
        until(lambda: companion_is_running(state), TIMEOUT)
        [pid] = companions(state)
        assert os.getsid(pid) not in (os.getsid(0), os.getsid(process.pid))
        targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [path for path in targets if path.startswith("pipe:") and path == os.readlink(f"/proc/self/fd/{reader}")]
        assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert b"sk-secret" not in file.read()
        until(lambda: (state / "companion.log").read_text() != "", TIMEOUT)  # logs that the server is down
        assert "sk-secret" not in (state / "companion.log").read_text()
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
        end_companions(state)


def test_start_fails(state, tmp_path, monkeypatch, stored_spans, caplog):
    """Threads of the process deliver instead, including what was recorded before. This is logged once."""
    monkeypatch.setattr(companion, "MODULE", "ckpt_observe.no_such_module")
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", delivery="companion")
    for key in "abc":
        with ckpt_observe.checkpoint("save", id=key):
            pass
        assert watch.flush(TIMEOUT)
    assert {span.attributes["checkpoint.id"] for span in stored_spans()} == {"a", "b", "c"}
    assert watch.close(60)
    assert caplog.text.count("Cannot start a companion") == 1
    assert is_empty(state)


def test_embedded_python(state, monkeypatch, caplog):
    """If `sys.executable` is not an interpreter, it is not started: it would be the application itself."""
    state.mkdir()
    monkeypatch.setattr(sys, "executable", "/opt/trainer/bin/trainer")
    assert Companion(state, "x", {}).check() is False
    assert "'/opt/trainer/bin/trainer' is not a Python interpreter" in caplog.text


def test_companion_that_always_exits(state, monkeypatch, caplog):
    """A companion that exits right after its start is not restarted for ever."""
    state.mkdir()
    monkeypatch.setattr(companion, "MODULE", "this")  # exits at once with code 0
    monkeypatch.setattr(companion, "CHECK_INTERVAL", 0.0)
    deliverer = Companion(state, "x", dict(os.environ))
    until(lambda: not deliverer.check(), TIMEOUT)
    deliverer.close(TIMEOUT)
    assert f"it exited {companion.MAX_ATTEMPTS} times right after its start" in caplog.text


def test_close_during_start(state, tmp_path, monkeypatch):
    """An intermediate process that outlives `close()` does not become a zombie."""
    state.mkdir()
    (tmp_path / "slow.py").write_text("import sys\nopen(sys.argv[0] + '.pipe').read()")
    os.mkfifo(tmp_path / "slow.py.pipe")
    monkeypatch.setattr(companion, "MODULE", "slow")
    deliverer = Companion(state, "x", {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert deliverer.check()
    pid = deliverer._process.pid
    deliverer.close(0.0)
    with open(tmp_path / "slow.py.pipe", "w"):  # waits until the process reads, and lets it exit
        pass
    until(lambda: pid not in processes(), TIMEOUT)


def test_identities_are_those_of_the_exporters(tmp_path):
    """A journal for a companion names the same identities as one of a process that has the exporters itself."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "LMNR_PROJECT_API_KEY": "k"}
    settings = config.read(variables, exporters="otlp,laminar,prometheus,local,console,provider", dir=tmp_path, delivery="companion")
    exporter_names = exporter_selection.exporter_names(settings)
    assert exporter_selection.exporter_identities(settings, exporter_names, {}) == [
        exporter.identity for exporter in exporter_selection.build_exporters(settings, exporter_names)
    ]
