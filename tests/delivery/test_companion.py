"""The companion: one for all processes, started when it is needed and gone when it is not; nothing is lost by anybody's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import ckpt_observe
from ckpt_observe import config, wiring
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

pytestmark = pytest.mark.faults  # whole lives of several processes: half a minute together


@pytest.fixture
def start(state):
    """`start()` gives a host with a companion; at the end all of them are gone."""
    hosts = []

    def make(**more):
        hosts.append(Host(environ(state, "companion", **more)))
        return hosts[-1]

    yield make
    for host in hosts:
        clean_up(host.process)
    end_companions(state)


def test_life(start, state):
    """Two processes have one companion, which is no child of theirs and leaves no zombie; it goes when they are clean_up, and nothing is left."""
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
    """A save cut short by kill -9 is in the store, interrupted, though nothing else ever starts; then the companion goes."""
    host = start()
    host.run("save a 1")
    host.run("hang b")
    host.kill()
    until(lambda: outcomes(state) == {"a 0": "ok", "b": "interrupted"}, TIMEOUT)
    until(lambda: companions(state) == [] and is_empty(state), TIMEOUT)


def test_killed_companion_is_replaced(start, state):
    """The host starts another, which goes on where the first stopped: nothing lost, nothing twice."""
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
    """A child has a journal of its own, and its death is seen though its parent lives."""
    host = start()
    host.run("save a 1")
    host.run("fork c")
    until(lambda: outcomes(state) == {"a 0": "ok", "c ended": "ok", "c open": "interrupted"}, TIMEOUT)
    assert len(companions(state)) == 1


def test_short_program(state):
    """A program that is over before its companion has started is not held up by it, and its pipes are closed when it ends."""
    code = "import ckpt_observe.auto\nwith ckpt_observe.checkpoint('save', id='a'): pass"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(state, "companion"), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    until(lambda: outcomes(state) == {"a": "ok"}, TIMEOUT)
    until(lambda: companions(state) == [] and is_empty(state), TIMEOUT)


def test_inherits_nothing(start, state):
    """Neither a descriptor of the host's nor its terminal, session or signals; keys come by the environment, never by an argument."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # a host's own sloppiness
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
        open_ones = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [path for path in open_ones if path.startswith("pipe:") and path == os.readlink(f"/proc/self/fd/{reader}")]
        assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert b"sk-secret" not in file.read()
        until(lambda: (state / "companion.log").read_text() != "", TIMEOUT)  # the server is not there: that is said
        assert "sk-secret" not in (state / "companion.log").read_text()
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
        end_companions(state)


def test_that_cannot_start(state, tmp_path, monkeypatch, stored_spans, caplog):
    """Threads of the process deliver instead, what was recorded before included, and it is said once."""
    monkeypatch.setattr(companion, "MODULE", "ckpt_observe.no_such_module")
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", delivery="companion")
    for key in "abc":
        with ckpt_observe.checkpoint("save", id=key):
            pass
        assert watch.flush(TIMEOUT)
    assert {span.attributes["checkpoint.id"] for span in stored_spans()} == {"a", "b", "c"}
    assert watch.close(20)
    assert caplog.text.count("Cannot start a companion") == 1
    assert is_empty(state)


def test_application_with_python_inside(state, monkeypatch, caplog):
    """What is no interpreter is never started: it would be the program itself, once more."""
    state.mkdir()
    monkeypatch.setattr(sys, "executable", "/opt/trainer/bin/trainer")
    assert Companion(state, "x", {}).check() is False
    assert "'/opt/trainer/bin/trainer' is not a Python interpreter" in caplog.text


def test_that_dies_again_and_again(state, monkeypatch, caplog):
    """One that is never there when it was started is not started for ever."""
    state.mkdir()
    monkeypatch.setattr(companion, "MODULE", "this")  # ends at once, and well
    monkeypatch.setattr(companion, "CHECK_INTERVAL", 0.0)
    seen = Companion(state, "x", dict(os.environ))
    until(lambda: not seen.check(), TIMEOUT)
    seen.close(TIMEOUT)
    assert f"it exited {companion.MAX_ATTEMPTS} times right after its start" in caplog.text


def test_closed_before_it_is_started(state, tmp_path, monkeypatch):
    """A process between that takes longer than we wait for it is no zombie afterwards."""
    state.mkdir()
    (tmp_path / "slow.py").write_text("import sys\nopen(sys.argv[0] + '.pipe').read()")
    os.mkfifo(tmp_path / "slow.py.pipe")
    monkeypatch.setattr(companion, "MODULE", "slow")
    seen = Companion(state, "x", {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert seen.check()
    pid = seen._process.pid
    seen.close(0.0)
    with open(tmp_path / "slow.py.pipe", "w"):  # waits until it reads, and lets it end
        pass
    until(lambda: pid not in processes(), TIMEOUT)


def test_owed_names_are_those_of_the_exporters(tmp_path):
    """A journal of a companion owes by the same names as one whose process has the exporters itself."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "LMNR_PROJECT_API_KEY": "k"}
    settings = config.read(variables, exporters="otlp,laminar,prometheus,local,console,provider", dir=tmp_path, delivery="companion")
    chosen = wiring.exporter_names(settings)
    assert wiring.exporter_identities(settings, chosen) == [exporter.identity for exporter in wiring.build_exporters(settings, chosen)]
