"""`observe()` and `import ckpt_observe.auto`, also with invalid settings, an unusable disk, forks and `close()`."""

from __future__ import annotations

import errno
import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe import api, config, exporter_selection, wiring
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.journal import locations
from ckpt_observe.record.recorder import recorder
from ckpt_observe.resource import process_resource
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.tracestore import FILENAME, TraceReader

ORIGINAL = Checkpointer.__dict__["save"]


def save(key="a"):
    with ckpt_observe.checkpoint("save", id=key) as operation, operation.phase("write"):
        pass
    return operation


def test_from_call_to_store(watch, stored_spans):
    """One save reaches the local store with its phase and resource. Nothing is created before it."""
    assert not watch.settings.dir.exists()
    operation = save()
    assert watch.flush(60)
    spans = stored_spans()
    assert {span.name for span in spans} == {"checkpoint.save", "checkpoint.write"}
    [save_span] = [span for span in spans if span.span_id == operation.span_id]
    assert save_span.resource["service.name"] == "test"
    assert save_span.resource["process.pid"] == os.getpid()


def our_threads():
    """Return the names of the threads that we started."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("ckpt-observe"))


def test_threads_start_with_the_first_operation(watch):
    """`observe()` alone starts no thread."""
    assert our_threads() == []
    save()
    assert our_threads() == ["ckpt-observe-collect", "ckpt-observe-exporter-local"]


def test_observe_twice(watch, state, tmp_path):
    """The same settings return the same watch. Other settings replace it, and nothing recorded is lost."""
    again = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", service="test")
    assert again is watch
    save("first")
    other = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages", service="other")
    assert other is not watch
    save("second")
    assert other.close(60)
    assert watch.close(60)


def test_close_restores(watch, stored_spans):
    """After `close()` the original functions are back, nothing more is recorded, and the store has what was."""
    assert Checkpointer.__dict__["save"] is not ORIGINAL
    save()
    assert watch.close(60)
    assert Checkpointer.__dict__["save"] is ORIGINAL
    assert save().span_id == ""
    assert len(stored_spans()) == 2
    assert watch.close(60)


@pytest.mark.parametrize("when", ["while it starts the journal", "before", "after it got its page"])
def test_close_while_the_first_operation_begins(watch, stored_spans, monkeypatch, when):
    """An operation that got its page is recorded. A later one is not, and starts nothing after `close()`."""
    reached, go_on = threading.Event(), threading.Event()
    targets = {
        "while it starts the journal": (wiring, "open_journal"),
        "before": (watch, "_ensure_journal"),
        "after it got its page": (watch, "_ensure_journal"),
    }
    target, name = targets[when]
    real = getattr(target, name)

    def step(*args):
        result = real(*args) if when == "after it got its page" else None
        reached.set()
        go_on.wait(30)
        return result or real(*args)

    monkeypatch.setattr(target, name, step)
    operations = []
    thread = threading.Thread(target=lambda: operations.append(save()))
    thread.start()
    assert reached.wait(30)
    closing = threading.Thread(target=watch.close, args=(30,))
    closing.start()
    go_on.set()
    thread.join(30)
    closing.join(30)
    assert recorder.take() is None
    wiring.deliver_dead(watch.settings, 60)
    assert [span.span_id for span in stored_spans() if span.span_id == operations[0].span_id] == [operations[0].span_id] * bool(
        operations[0].span_id
    )
    assert our_threads() == []


def test_core_is_observed(watch, stored_spans, tmp_path):
    """Operations of the reference core are recorded, and a load links to the save of its checkpoint."""
    checkpointer = Checkpointer(tmp_path / "ckpt")
    random.seed(1)
    before = random.getstate()
    checkpointer.save("run", {"a": 1}, step=1)
    assert checkpointer.load("run") == {"a": 1}
    assert random.getstate() == before
    assert watch.flush(60)
    spans = {span.name: span for span in stored_spans() if names.OPERATION in span.attributes}
    assert [link.span_id for link in spans["checkpoint.load"].links] == [spans["checkpoint.save"].span_id]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"exporters": "carrier-pigeon"}, ("CKPT_OBSERVE_EXPORTERS", "carrier-pigeon", "local", "console", "none")),
        ({"exporters": ["local", "none"]}, ("CKPT_OBSERVE_EXPORTERS", "none", "local")),
        ({"delivery": "exporter"}, ("CKPT_OBSERVE_DELIVERY", "exporter", "in-process")),
        ({"enabled": "perhaps"}, ("CKPT_OBSERVE_ENABLED", "perhaps", "true", "false")),
    ],
)
def test_wrong_argument(arguments, words):
    """An invalid argument raises a ConfigError that names setting, value and choices. Nothing is started."""
    with pytest.raises(ckpt_observe.ConfigError) as caught:
        ckpt_observe.observe(**arguments)
    assert [word for word in words if word not in str(caught.value)] == []
    assert api._watch is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CKPT_OBSERVE_EXPORTERS", "pigeon"),
        ("CKPT_OBSERVE_ENABLED", "maybe"),
        ("OTEL_SDK_DISABLED", "x"),
        ("OTEL_RESOURCE_ATTRIBUTES", "novalue"),
        ("CKPT_OBSERVE_DELIVERY", "x"),
        ("OTEL_TRACES_SAMPLER", "dice"),
    ],
)
def test_wrong_variable(monkeypatch, variable, value):
    """An invalid variable raises a ConfigError that names variable and value."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ckpt_observe.ConfigError, match=f"{variable}.*{value}"):
        ckpt_observe.observe()


def test_unknown_operation():
    """The name of an unknown operation raises an error where it is used."""
    with pytest.raises(ckpt_observe.ConfigError, match=r"'sve' is not a checkpoint operation; use one of: save, load"):
        ckpt_observe.checkpoint("sve")


@pytest.mark.parametrize(
    ("variable", "value"), [("CKPT_OBSERVE_ENABLED", "false"), ("OTEL_SDK_DISABLED", "true"), ("CKPT_OBSERVE_EXPORTERS", "none")]
)
def test_switched_off(monkeypatch, state, variable, value):
    """If it is switched off, nothing is patched, recorded or written."""
    monkeypatch.setenv(variable, value)
    watch = ckpt_observe.observe(dir=state)
    assert not recorder.on
    assert Checkpointer.__dict__["save"] is ORIGINAL
    assert save().span_id == ""
    assert watch.flush(60)
    assert watch.close(60)
    assert not state.exists()


def test_instrumentation_switched_off(monkeypatch, state):
    """A library that the user disables is not patched."""
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "reference")
    watch = ckpt_observe.observe(dir=state)
    assert Checkpointer.__dict__["save"] is ORIGINAL
    assert watch.close(60)


@pytest.mark.parametrize(
    ("delivery", "pid", "waits"), [("in-process", 7, True), ("companion", 7, False), ("companion", 1, True), ("daemon", 1, False)]
)
def test_exit_timeout(monkeypatch, state, delivery, pid, waits):
    """Exit waits for delivery in this process, and if it is PID 1 of a container, because then its companion dies with it."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    assert (api._exit_timeout(api.Watch(config.read(dir=state, delivery=delivery))) > 0) == waits


@pytest.fixture
def other_directories(tmp_path, monkeypatch):
    """The temporary directory and shared memory of this test. The state directories in them, which are used if no other can be."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(locations, "SHARED_MEMORY", tmp_path / "memory")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "memory").mkdir()
    return [tmp_path / "temporary" / f"ckpt_observe-{os.geteuid()}", tmp_path / "memory" / f"ckpt_observe-state-{os.geteuid()}"]


def make_unusable(monkeypatch, directory, trouble):
    """Make a path unusable as a state directory. Root may write everywhere, so a read-only disk is imitated."""
    if trouble == "file":
        directory.write_text("x")
        return
    directory.mkdir(mode=0o700)
    if trouble == "open to others":
        directory.chmod(0o777)
    if trouble == "read-only":
        mkdir = Path.mkdir

        def fail(path, *arguments, **options):
            if str(path).startswith(str(directory)) and not path.exists():
                raise OSError(errno.EROFS, "Read-only file system")
            mkdir(path, *arguments, **options)

        monkeypatch.setattr(Path, "mkdir", fail)


@pytest.mark.parametrize("trouble", ["file", "open to others", "read-only"])
@pytest.mark.parametrize("count", [1, 2])
def test_state_directory_that_cannot_be_used(monkeypatch, tmp_path, caplog, other_directories, trouble, count):
    """Records are kept in a temporary directory, or else in shared memory, and delivered. One warning says what to do."""
    monkeypatch.setattr(wiring, "_warnings", WarningLog())
    for directory in [tmp_path / "state", *other_directories][:count]:
        make_unusable(monkeypatch, directory, trouble)
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    for _ in range(5):
        assert save().span_id
    assert watch.close(60)
    with TraceReader(other_directories[count - 1] / FILENAME) as reader:
        assert len(reader.newest()) == 5
    [warning] = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert "set CKPT_OBSERVE_DIR" in warning
    assert str(other_directories[count - 1]) in warning


def test_no_directory_can_be_used(monkeypatch, tmp_path, caplog, other_directories):
    """Spans are delivered from memory to exporters that need no file, also after an outage. Those that store on this machine are left out."""
    monkeypatch.setattr(wiring, "_warnings", WarningLog())
    for directory in [tmp_path / "state", *other_directories]:
        directory.write_text("x")
    exporter = FlakyExporter()
    monkeypatch.setitem(exporter_selection.EXPORTERS, "console", lambda _settings: exporter)
    watch = ckpt_observe.observe(exporters="console,local", dir=tmp_path / "state")
    with ckpt_observe.checkpoint("save", id="large") as operation:
        for number in range(50):  # needs more than one page
            operation.add_event("event", {"text": "x" * 1000, "number": number})
    child = os.fork()
    if not child:
        os._exit(7 if save("child").span_id and api._watch.close(20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    save("small")
    assert watch.flush(60)
    assert watch.close(60)
    operations = [span for span in exporter.spans if names.OPERATION in span.attributes]
    assert [span.attributes[names.ID] for span in operations] == ["large", "small"]
    assert len(operations[0].events) > 3
    [warning] = [entry.getMessage() for entry in caplog.records if "CKPT_OBSERVE_DIR" in entry.getMessage()]
    assert "Records are kept in memory" in warning


class FlakyExporter(Exporter):
    """Fails once."""

    name = "console"

    def __init__(self):
        self.spans, self.failures = [], 1

    def send(self, spans):
        if self.failures:
            self.failures -= 1
            raise ExporterRetryError("down")
        self.spans += spans


def test_pages_directory_that_cannot_be_used(monkeypatch, tmp_path, state, caplog, stored_spans):
    """Another directory is used, after one warning."""
    monkeypatch.setattr(wiring, "_warnings", WarningLog())
    (tmp_path / "pages").write_text("x")
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    assert save().span_id
    assert watch.close(60)
    assert stored_spans()
    assert "CKPT_OBSERVE_PAGES_DIR" in caplog.text


HOST = """
import ckpt_observe.auto
from ckpt_observe.core import Checkpointer
import sys
print(Checkpointer(sys.argv[1]).save("run", {"a": 1}).task)
sys.exit(5)
"""


def host(tmp_path, **variables):
    environment = {
        **os.environ,
        "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
        "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", HOST, str(tmp_path / "ckpt")], capture_output=True, text=True, env=environment, check=False
    )


def test_auto(tmp_path, state, stored_spans):
    """With one import the save is in the store, and output and exit code of the program are unchanged."""
    done = host(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (5, "run\n", "")
    wiring.deliver_dead(config.read(exporters="local", dir=state), 60)  # what it had no time for at its exit
    assert "checkpoint.save" in {span.name for span in stored_spans()}


def test_auto_with_a_wrong_setting(tmp_path):
    """An invalid setting is logged, and the program runs."""
    done = host(tmp_path, CKPT_OBSERVE_EXPORTERS="pigeon")
    assert (done.returncode, done.stdout) == (5, "run\n")
    assert "Checkpoints are not observed: CKPT_OBSERVE_EXPORTERS: 'pigeon'" in done.stderr


def test_forked_child(watch, stored_spans):
    """A forked child has its own journal. An operation that was running at the fork belongs to the parent."""
    with ckpt_observe.checkpoint("save", id="parent") as running:
        child = os.fork()
        if not child:
            try:
                save("child")
                running.finish()
                ckpt_observe.api._watch.close(20)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert watch.flush(60)
    by_id = {span.attributes[names.ID]: span for span in stored_spans() if names.OPERATION in span.attributes}
    assert set(by_id) == {"parent", "child"}
    assert {span.attributes[names.OUTCOME] for span in by_id.values()} == {"ok"}
    assert by_id["child"].resource["process.pid"] == child
    assert by_id["child"].parent_span_id == running.span_id


FORKED_MEANWHILE = """
import os, signal, sys, threading
import ckpt_observe.api

def save(key):
    with ckpt_observe.checkpoint("save", id=key):
        pass

class Slow:
    def find_spec(self, name, *_):
        if name == "ckpt_observe.wiring":
            importing.set()
            forking.wait(30)

importing, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # registered last, so it runs first: the import continues when the fork has started
sys.meta_path.insert(0, Slow())
watch = ckpt_observe.observe()
first = threading.Thread(target=save, args=("parent",))
first.start()
importing.wait(30)
child = os.fork()
if not child:
    signal.alarm(20)
    save("child")
    os._exit(0 if ckpt_observe.api._watch.close(20) else 1)
first.join()
watch.close(20)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_while_the_first_operation_begins(tmp_path, state, stored_spans):
    """A child that is forked while another thread starts the journal can save: it does not wait for locks of that thread."""
    environ = {
        **os.environ,
        "CKPT_OBSERVE_DIR": str(state),
        "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages"),
        "CKPT_OBSERVE_EXPORTERS": "local",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED_MEANWHILE], check=False, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {span.attributes[names.ID] for span in stored_spans()} == {"parent", "child"}


def test_forked_while_the_start_hangs(watch, monkeypatch):
    """If the start hangs, a fork continues after a timeout, and its child is not observed."""
    monkeypatch.setattr(api, "FORK_TIMEOUT", 0.1)
    locked, go_on = threading.Event(), threading.Event()

    def hangs():
        with api._lock:
            locked.set()
            go_on.wait(30)

    thread = threading.Thread(target=hangs)
    thread.start()
    assert locked.wait(30)
    child = os.fork()
    if not child:
        os._exit(bool(save().span_id))
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    thread.join(30)
    assert save().span_id


def test_child_that_dies(watch, stored_spans):
    """The parent adopts the journal of a forked child that died: its finished and its interrupted operation are delivered."""
    child = os.fork()
    if not child:
        save("ended")
        with ckpt_observe.checkpoint("load", id="open") as operation, operation.phase("read"):
            os._exit(0)
    os.waitpid(child, 0)
    save("parent")
    assert watch.flush(60)
    by_id = {span.attributes[names.ID]: span for span in stored_spans() if names.OPERATION in span.attributes}
    assert {key: span.attributes[names.OUTCOME] for key, span in by_id.items()} == {"ended": "ok", "open": "interrupted", "parent": "ok"}
    assert by_id["open"].attributes[names.ERROR_PHASE] == "read"


def test_secrets_of_the_resource():
    """Secrets in OTEL_RESOURCE_ATTRIBUTES are redacted."""
    attributes = process_resource(config.read({"OTEL_RESOURCE_ATTRIBUTES": "team=ml,api_key=hunter2,note=password%3Dhunter2"}), "i", {})
    assert attributes["team"] == "ml"
    assert "hunter2" not in str(attributes)
    with pytest.raises(ckpt_observe.ConfigError, match=r"'\[redacted\]' is not of the form"):
        config.read({"OTEL_RESOURCE_ATTRIBUTES": "team=ml,a8Kd92LmQ0"})


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        ({"exporters": ["local"]}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "OTEL_EXPORTER_OTLP_ENDPOINT is ignored"),
        (
            {"exporters": "local"},
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is ignored",
        ),
        ({"exporters": "local"}, {"LMNR_PROJECT_API_KEY": "key"}, "LMNR_PROJECT_API_KEY is ignored"),
        ({"exporters": "local"}, {"CKPT_OBSERVE_EXPORTERS": "console"}, "CKPT_OBSERVE_EXPORTERS is ignored"),
        ({"service": "mine"}, {"OTEL_SERVICE_NAME": "theirs"}, "OTEL_SERVICE_NAME is ignored"),
        ({"exporters": "+console"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, None),
        ({"exporters": "otlp,local"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, None),
        ({"exporters": "provider"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, None),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SERVICE_NAME": "theirs"}, None),
    ],
    ids=str,
)
def test_ignored_variable_is_logged_once(monkeypatch, caplog, state, arguments, variables, words):
    """An argument wins over the variables, and a warning names the variable that has no effect."""
    monkeypatch.setattr(api, "_warnings", WarningLog())
    for name, value in {**variables, "CKPT_OBSERVE_DIR": str(state)}.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        ckpt_observe.observe(**arguments).close()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (words is not None), messages
    assert all(words in message for message in messages)
