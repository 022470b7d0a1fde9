"""OpenTelemetry's resource detectors: which of them run, and that none of them harms or delays the host program."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe import resource_detectors
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims
from ckpt_observe.journal.directory import read_about
from ckpt_observe.journal.journal import Journal
from ckpt_observe.resource_detectors import Detection, detect

TEAM_ATTRIBUTES = {"team": "ml", "floor": 3, "labels": ["a", "b"], "service.name": "found", "telemetry.sdk.name": "found"}


@pytest.fixture(autouse=True)
def detectors(monkeypatch):
    """The package `detectors_of_tests` is installed. Returns its module."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "detectors")
    monkeypatch.setattr(resource_detectors, "_detections", {})
    import detectors_of_tests  # noqa: PLC0415

    detectors_of_tests.released.clear()
    yield detectors_of_tests
    detectors_of_tests.released.set()


def warnings(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING and entry.name == "ckpt_observe"]


def test_attributes(caplog):
    """What a detector finds keeps its types. `otel` is not run: its variables are settings of ours."""
    assert detect(["otel", "test_team"]).wait() == TEAM_ATTRIBUTES
    assert warnings(caplog) == []


def test_later_detector_counts():
    """Attributes are merged in the order of the names. Secrets are redacted, and requests of detectors are not traced."""
    attributes = detect(["test_team", "test_other_team"]).wait()
    assert (attributes["team"], attributes["floor"], attributes["is.traced"]) == ("other", 3, False)
    assert "hunter2" not in str(attributes)
    assert detect(["test_other_team", "test_team"]).wait()["team"] == "ml"


def test_all_detectors(monkeypatch):
    """`*` stands for all that are installed, in its place among the names."""
    monkeypatch.setattr(resource_detectors.entry_points, "names", lambda group: ["otel", "test_pid", "test_team"])
    attributes = detect(["*", "test_other_team"]).wait()
    assert (attributes["team"], attributes["process.number"]) == ("other", os.getpid())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_failing", "no metadata server"),
        ("test_not_creatable", "not here"),
        ("test_nothing", "AttributeError"),
        ("test_not_importable", "missing a library"),
        ("test_unknown", "no installed package provides 'test_unknown'"),
        ("test_exiting", "SystemExit(3)"),
    ],
)
def test_failing_detector(caplog, name, reason):
    """A detector that fails is left out, with one warning that names it. The others are used."""
    assert detect([name, "test_team"]).wait() == TEAM_ATTRIBUTES
    [warning] = warnings(caplog)
    assert name in warning
    assert reason in warning


def test_slow_detector(caplog):
    """A detector that does not answer in time is left out, with a warning."""
    detection = Detection(["test_slow", "test_team"], timeout=60.0)
    is_done = threading.Event()
    detection.when_done(lambda _: is_done.set())
    detection.start()
    while "test_team" not in detection._results:  # on a busy machine, also a quick detector takes a moment
        assert not is_done.wait(0.01)
    detection._deadline = detection._start + 0.5
    assert is_done.wait(60)
    assert detection.attributes == TEAM_ATTRIBUTES
    [warning] = warnings(caplog)
    assert "test_slow did not answer within 0.5 s" in warning


def test_no_thread_can_be_started(monkeypatch, caplog):
    """Without threads, detectors are skipped."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert detect(["test_team"]).wait() == {}
    assert "can't start new thread" in warnings(caplog)[0]


def test_one_run():
    """All users of the same detectors share one run."""
    assert detect(["test_team"]) is detect(["otel", "test_team"])


def test_forked_child():
    """A forked child runs the detectors again: they describe the process."""
    assert detect(["test_pid"]).wait()["process.number"] == os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(detect(["test_pid"]).wait()["process.number"]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == str(child).encode()
    os.close(reader)
    os.close(writer)


@pytest.fixture
def slow_import(monkeypatch):
    monkeypatch.setattr(sys, "import_started", threading.Event(), raising=False)
    monkeypatch.setattr(sys, "release_import", threading.Event(), raising=False)
    yield sys
    sys.release_import.set()
    sys.modules.pop("detectors_of_tests_slow_import", None)


def test_fork_waits_for_imports(slow_import, monkeypatch):
    """A fork waits while a detector is imported, because its module would stay locked in the child."""
    monkeypatch.setattr(resource_detectors, "FORK_TIMEOUT", 30.0)
    detection = Detection(["test_slow_import"], timeout=30.0)
    resource_detectors._detections["x",] = detection
    detection.start()
    assert slow_import.import_started.wait(30)
    fork = threading.Thread(target=resource_detectors._before_fork)
    fork.start()
    assert not detection._imported.is_set()
    slow_import.release_import.set()
    fork.join()
    assert detection._imported.is_set()
    assert detection.wait() == {"imported": True}


def test_fork_does_not_wait_for_an_import_that_hangs(slow_import):
    """After the time for detectors, a fork does not wait for them."""
    detection = Detection(["test_slow_import"], timeout=0.0)
    detection.start()
    assert detection.wait() == {}
    detection.wait_for_imports()


def observe(monkeypatch, state, tmp_path, names, **arguments):
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", names)
    return ckpt_observe.observe(**{"exporters": "local", "dir": state, "pages_dir": tmp_path / "pages", **arguments})


def save():
    with ckpt_observe.checkpoint("save"):
        pass


def test_checkpoint_does_not_wait(monkeypatch, state, tmp_path, detectors, stored_spans):
    """Neither `observe()` nor a save waits for a detector. Delivery does, so that all spans have the same resource."""
    watch = observe(monkeypatch, state, tmp_path, "test_slow")
    save()
    assert not watch.flush(0.01)
    assert stored_spans() == []
    detectors.released.set()
    save()
    assert watch.close(30)
    assert [span.resource["slow"] for span in stored_spans()] == ["found", "found"]


def test_close_does_not_wait(monkeypatch, state, tmp_path):
    """A program that ends before its detectors leaves the records to the next process, with the resource that is known."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")  # down: the records are not delivered, however fast we are
    watch = observe(monkeypatch, state, tmp_path, "test_slow", service="short", exporters="otlp")
    save()
    assert not watch.close(0.01)
    [about] = (state / "journals").glob("*/about.json")
    assert json.loads(about.read_bytes())["resource"]["service.name"] == "short"


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_program_ends_before_its_detectors(monkeypatch, capfd, state, tmp_path, is_in_memory):
    """Exporters get the records of a short program, with the resource that is known: there may be no next program."""
    if is_in_memory:

        def refuse(directory):
            raise JournalError(f"{directory} cannot be used")

        monkeypatch.setattr("ckpt_observe.wiring.usable_directory", refuse)
    watch = observe(monkeypatch, state, tmp_path, "test_slow,test_team", exporters="console")
    save()
    assert watch.close(4)
    assert "checkpoint.save" in "".join(capfd.readouterr())


def test_detectors_run_again(monkeypatch, state, tmp_path, detectors, stored_spans):
    """After a close that did not wait for the detectors, the next observation has what they find."""
    watch = observe(monkeypatch, state, tmp_path, "test_slow")
    save()
    watch.close(0)
    detectors.released.set()
    watch = observe(monkeypatch, state, tmp_path, "test_slow")
    save()
    assert watch.close(30)
    assert sorted(span.resource.get("slow", "") for span in stored_spans()) == ["", "found"]


def test_late_resource(state, tmp_path):
    """A resource that comes after the journal was released is ignored: another process may deliver the journal by then."""
    journal = Journal(state, tmp_path / "pages", ["local"], {"service.name": "t"}, is_resource_known=False)
    journal.release()
    journal.set_resource({"team": "ml"})
    assert read_about(journal.directory).resource == {"service.name": "t"}


def test_precedence(monkeypatch, state, tmp_path, stored_spans):
    """Settings have precedence over detectors; the SDK and the process are ours. The name of the program is only a default."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=mine")
    for service in ("mine", None):
        watch = observe(monkeypatch, state, tmp_path, "test_team,test_pid", service=service)
        save()
        assert watch.close(30)
    resources = [span.resource for span in stored_spans()]
    assert {resource["service.name"] for resource in resources} == {"mine", "found"}
    assert {(each["team"], each["telemetry.sdk.name"], each["process.pid"], each["floor"]) for each in resources} == {
        ("mine", "ckpt_observe", os.getpid(), 3)
    }


@pytest.mark.parametrize("mode", ["companion", "daemon"])
def test_other_process_delivers(state, tmp_path, mode):
    """A companion or daemon gets the journal when its resource is known, and reads all of it."""
    journal = Journal(state, tmp_path / "pages", ["local"], {"service.name": "t"}, mode, is_resource_known=False)
    assert claims.claim_delivery(journal.directory) is None
    journal.set_resource({"service.name": "t", "team": "ml"})
    claim = claims.claim_delivery(journal.directory)
    assert claim.about == journal.about
    assert claim.about.resource == {"service.name": "t", "team": "ml"}
    claim.release()
    journal.remove()


def test_full_disk(state, tmp_path, monkeypatch, caplog):
    """If the resource cannot be stored, this process still delivers with it."""
    journal = Journal(state, tmp_path / "pages", ["local"], {}, is_resource_known=False)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ckpt_observe.support.files.replace_file", full)
    journal.set_resource({"team": "ml"})
    assert journal.resource_known.is_set()
    assert journal.about.resource == {"team": "ml"}
    assert "No space left" in warnings(caplog)[0]
    journal.remove()
