"""`ckpt-observe doctor`: settings, directories, journals and patches."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpt_observe import libraries
from ckpt_observe.cli.doctor import NOTE, OK, PROBLEM, Diagnosis, command, state_directory
from ckpt_observe.delivery import outbox
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import Target
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.libraries import Library
from ckpt_observe.tracestore import FILENAME, TraceReader, TraceWriter


def test_settings_have_their_origin(doctor):
    """Each setting is shown with its value and origin: a variable (for traces before the general one) or the default."""
    findings = doctor(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://127.0.0.1:1/x", OTEL_TRACES_SAMPLER="always_off", CKPT_OBSERVE_EXPORTERS="local"
    )
    assert findings["setting CKPT_OBSERVE_EXPORTERS"].detail == "local (from CKPT_OBSERVE_EXPORTERS)"
    assert findings["setting OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"].detail == "http://127.0.0.1:1/x (from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)"
    assert findings["setting OTEL_TRACES_SAMPLER"].detail == "always_off (from OTEL_TRACES_SAMPLER)"
    assert findings["setting CKPT_OBSERVE_DELIVERY"].detail == "in-process (from default)"
    assert findings["setting OTEL_SERVICE_NAME"].detail == "name of the program (from default)"


def test_secrets_are_not_shown(doctor):
    """No finding contains a key or the credentials of a URL."""
    findings = doctor(
        CKPT_OBSERVE_EXPORTERS="otlp,laminar,prometheus",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://user:s3cret@127.0.0.1:1/x?key=s3cret",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret",
        LMNR_PROJECT_API_KEY="s3cret",
        LMNR_BASE_URL="http://127.0.0.1:1",
        CKPT_OBSERVE_METRICS_TOKEN="s3cret",
        OTEL_RESOURCE_ATTRIBUTES="team=ml,api_key=s3cret",
        CKPT_OBSERVE_METRICS_PUSHGATEWAY="http://user:s3cret@127.0.0.1:1",
    )
    grpc = doctor(CKPT_OBSERVE_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="grpc", OTEL_EXPORTER_OTLP_ENDPOINT="user:s3cret@127.0.0.1:1")
    assert "s3cret" not in repr(grpc)
    assert findings["setting LMNR_PROJECT_API_KEY"].detail == "set, not shown (from LMNR_PROJECT_API_KEY)"
    assert "s3cret" not in repr(findings)


@pytest.mark.parametrize("url", ["http://user:s3cret@127.0.0.1", "http://user:p@s3cret@127.0.0.1:1", "user:s3cret@127.0.0.1:1"])
@pytest.mark.parametrize(
    "variables",
    [
        ("prometheus", "CKPT_OBSERVE_METRICS_PUSHGATEWAY", ""),
        ("otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", "http/protobuf"),
        ("otlp", "OTEL_EXPORTER_OTLP_ENDPOINT", "grpc"),
    ],
)
def test_credentials_of_odd_urls_are_not_shown(doctor, variables, url):
    """URLs without a port or scheme, or with an extra @: the error message of a library would contain the credentials."""
    exporter, name, protocol = variables
    findings = doctor(
        **{"CKPT_OBSERVE_EXPORTERS": exporter, name: url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    )
    assert "s3cret" not in repr(findings)


@pytest.mark.parametrize(
    ("traceparent", "is_reported"), [("00-short", True), ("00-" + "1" * 32 + "-" + "2" * 16 + "-01", False), ("", False)]
)
def test_invalid_traceparent(doctor, traceparent, is_reported):
    """An invalid TRACEPARENT is ignored at run time, so the doctor reports it."""
    assert ("TRACEPARENT" in doctor(TRACEPARENT=traceparent, CKPT_OBSERVE_EXPORTERS="local")) is is_reported


@pytest.mark.parametrize(
    ("sampler", "exporters", "note"),
    [
        (
            "always_off",
            "local",
            "no new trace is sampled (OTEL_TRACES_SAMPLER=always_off); operations of unsampled traces are not recorded",
        ),
        (
            "traceidratio",
            "prometheus",
            "0.1 of the new traces are sampled (OTEL_TRACES_SAMPLER=traceidratio); metrics count every operation",
        ),
        ("always_on", "local", None),
    ],
)
def test_sampling_is_noted(doctor, sampler, exporters, note):
    """A sampler that leaves traces out is noted, with its effect on the metrics."""
    findings = doctor(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG="0.1", CKPT_OBSERVE_EXPORTERS=exporters)
    assert findings["sampling"].detail.startswith(note) if note else "sampling" not in findings


@pytest.mark.parametrize(("names", "is_reported"), [("process,no-such-detector", True), ("process,otel,*", False), ("", False)])
def test_unknown_resource_detector(doctor, names, is_reported):
    """A resource detector that no package provides is ignored at run time, so the doctor reports it."""
    findings = doctor(OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=names, CKPT_OBSERVE_EXPORTERS="local")
    assert ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS" in findings) is is_reported


@pytest.mark.parametrize(("tracestate", "is_reported"), [("not a pair", True), ("a=1", False), ("", False)])
def test_invalid_tracestate(doctor, tracestate, is_reported):
    """An invalid TRACESTATE is ignored at run time, so the doctor reports it."""
    assert ("TRACESTATE" in doctor(TRACESTATE=tracestate, CKPT_OBSERVE_EXPORTERS="local")) is is_reported


@pytest.mark.parametrize(
    ("name", "verdict", "hint"),
    [
        ("CKPT_OBSERVE_EXPORTER", PROBLEM, "did you mean CKPT_OBSERVE_EXPORTERS?"),
        ("CKPT_OBSERVE_DELIVREY", PROBLEM, "did you mean CKPT_OBSERVE_DELIVERY?"),
        ("CKPT_OBSERVE_XYZ", NOTE, "no such setting"),
    ],
)
def test_misspelt_variables(doctor, name, verdict, hint):
    """An unknown variable with our prefix is reported, with a similar one if there is one."""
    finding = doctor(**{name: "x"})[name]
    assert (finding.state, hint in finding.detail) == (verdict, True)


@pytest.mark.parametrize(
    ("variables", "effect"),
    [
        ({"CKPT_OBSERVE_DRAIN": "in-process"}, "still works"),
        ({"CKPT_OBSERVE_DRAIN": "thread", "CKPT_OBSERVE_DELIVERY": "in-process"}, "ignored, because CKPT_OBSERVE_DELIVERY is set"),
    ],
)
def test_renamed_variable(doctor, variables, effect):
    """The former name of a variable is reported as renamed, not as unknown."""
    finding = doctor(**variables, CKPT_OBSERVE_EXPORTERS="local")["CKPT_OBSERVE_DRAIN"]
    assert (finding.state, finding.detail) == (NOTE, f"was renamed to CKPT_OBSERVE_DELIVERY; {effect}")


def test_invalid_setting(doctor):
    """An invalid setting is reported and ends the checks; earlier findings remain."""
    findings = doctor(OTEL_TRACES_SAMPLER="dice", CKPT_OBSERVE_DIRR="x")
    assert findings["settings"].state == PROBLEM
    assert "'dice'" in findings["settings"].detail
    assert "CKPT_OBSERVE_DIRR" in findings


@pytest.mark.parametrize(
    ("variables", "subject"), [({"OTEL_SDK_DISABLED": "true"}, "enabled"), ({"CKPT_OBSERVE_EXPORTERS": "none"}, "exporters")]
)
def test_recording_turned_off(doctor, variables, subject):
    """If recording is turned off, a note names the setting that does it."""
    finding = doctor(**variables)[subject]
    assert finding.state == NOTE
    assert next(iter(variables)) in finding.detail


@pytest.mark.parametrize("place", ["/proc/nowhere/state", "file"])
def test_unwritable_directory(doctor, tmp_path, place):
    """An unwritable state directory is a problem, and so is the store in it."""
    (tmp_path / "file").write_text("not a directory")
    findings = doctor(CKPT_OBSERVE_DIR=place if place.startswith("/") else tmp_path / place / "state")
    assert {findings["state directory"].state, findings["trace store"].state} == {PROBLEM}
    assert (findings["other directory"].state, "programs use" in findings["other directory"].detail) == (NOTE, True)


def test_full_disk(doctor, state, monkeypatch):
    """The problem names the directory. Programs do not use another one if the disk still has room for a new directory."""

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # like a write, without a file name

    monkeypatch.setattr(os, "fsync", fsync)
    findings = doctor()
    assert findings["state directory"] == Diagnosis(PROBLEM, "state directory", f"{state}: No space left on device")
    assert f"keep records in memory until {state} can be written" in findings["other directory"].detail


def test_unwritable_store(doctor, state, monkeypatch):
    """The store is checked with an empty transaction, which changes nothing and detects a damaged file."""
    state.mkdir(mode=0o700)
    TraceWriter(state / FILENAME).close()
    before = os.stat(state / FILENAME).st_mtime_ns
    assert doctor()["trace store"].state == OK
    with TraceReader(state / FILENAME) as reader:
        assert reader.newest(1) == []
    assert os.stat(state / FILENAME).st_mtime_ns == before
    (state / FILENAME).write_text("dear diary, " * 100)
    assert doctor()["trace store"].state == PROBLEM


def test_little_disk_space(doctor, monkeypatch):
    """Less space than an outage may need gives a note."""
    monkeypatch.setattr(outbox, "SPOOL_LIMIT", 1 << 62)
    finding = doctor()["state directory"]
    assert finding.state == NOTE
    assert "may need" in finding.detail


def test_doctor_cleans_up(doctor, state, tmp_path):
    """The checks leave no file and no directory behind."""
    doctor(CKPT_OBSERVE_EXPORTERS="local,prometheus", CKPT_OBSERVE_METRICS_TEXTFILE=tmp_path / "x.prom")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def journal(state, tmp_path):
    journal = Journal(state, tmp_path / "pages", ["otlp@0123456789ab", "local"], {"service.name": "trainer"})
    yield journal
    journal.remove()


def test_backlog_of_a_journal(doctor, journal):
    """The finding has the process, whether it is alive, and the backlog of each exporter."""
    journal.spool.append([b"x" * 1014])
    box = outbox.Outbox(journal.directory, {}, ["local", "otlp@0123456789ab"])
    box.advance("local", Cursor(1, 1024))
    subject = f"journal {os.path.basename(journal.directory)}"
    finding = doctor()[subject]
    assert finding == Diagnosis(OK, subject, f"process {os.getpid()} (trainer), alive; waiting: 1.0 kB for otlp")


def test_journal_of_a_dead_process(doctor, journal):
    """A note reports the backlog of a dead process and how it will be delivered."""
    journal.spool.append([b"x" * 1014])
    journal.release()
    findings = doctor()
    finding = findings[f"journal {os.path.basename(journal.directory)}"]
    assert finding.state == NOTE
    assert "dead" in finding.detail
    assert "run `ckpt-observe deliver` with the settings of the program" in finding.detail
    assert findings["journals"].detail.startswith("0 of live processes, 1 of dead processes")


def test_nearly_full_journal(doctor, journal, monkeypatch):
    """A journal that is more than half full is a problem, before anything is dropped."""
    monkeypatch.setattr(outbox, "SPOOL_LIMIT", 1500)
    journal.spool.append([b"x" * 1014])
    finding = doctor()[f"journal {os.path.basename(journal.directory)}"]
    assert finding.state == PROBLEM
    assert "68 % full" in finding.detail


def test_idle_journal_is_only_counted(doctor, journal):
    """A live process without a backlog has no finding of its own."""
    findings = doctor()
    assert findings["journals"].detail.startswith("1 of live processes")
    assert not [subject for subject in findings if subject.startswith("journal ")]


class Absent(Instrumentor):
    name, library = "absent", "no_such_library"

    def targets(self):
        return [Target("no_such_library", "save", None)]


class Changed(Instrumentor):
    name, library = "changed", "json"

    def targets(self):
        return [
            Target("json", "dumps_renamed", None),
            Target("json", "gone", None, required=False),
            Target("json", "loads", lambda wrapped, _instance, args, kwargs: wrapped(*args, **kwargs)),
        ]


@pytest.mark.parametrize(
    ("kind", "states"),
    [(Absent, {"patches absent": OK}), (Changed, {"patches changed": OK, "json.dumps_renamed": PROBLEM, "json.gone": NOTE})],
)
def test_patches(doctor, monkeypatch, kind, states):
    """A library that is not installed is fine; one that lacks a required callable is a problem."""
    monkeypatch.setitem(libraries.LIBRARIES, kind.name, Library(kind.name, "", kind.library))
    monkeypatch.setattr(registry, "load", lambda _name: kind())
    findings = doctor()
    assert {subject: findings[subject].state for subject in states} == states


class WithoutBackend(Instrumentor):
    name, library = "without-backend", "library_without_backend"

    def targets(self):
        return [Target("library_without_backend", "save", None)]


def test_library_that_cannot_be_imported(doctor, monkeypatch, tmp_path):
    """A library that is installed and needs a package that is not, as Keras its backend, is a note with the reason."""
    (tmp_path / "library_without_backend.py").write_text("import no_such_backend")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(libraries.LIBRARIES, "without-backend", Library("without backend", "", "library_without_backend"))
    monkeypatch.setattr(registry, "load", lambda _name: WithoutBackend())
    finding = doctor()["patches without-backend"]
    assert finding.state == NOTE
    assert finding.detail == "library_without_backend cannot be imported here: ModuleNotFoundError: No module named 'no_such_backend'"


@pytest.mark.parametrize("name", ["reference", "ckpt_observe", "*"])
def test_patches_that_are_disabled(doctor, name):
    """A note names the variable that disables an instrumentation, with its value."""
    finding = doctor(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=name)["patches reference"]
    assert finding == Diagnosis(NOTE, "patches reference", f"disabled by OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={name}")


def test_failing_check_does_not_hide_others(doctor, monkeypatch):
    """A check that raises is reported, and the others run."""
    monkeypatch.setitem(command.CHECKS, "journals", lambda _: 1 / 0)
    findings = doctor()
    assert findings["journals"] == Diagnosis(PROBLEM, "journals", "the check failed: ZeroDivisionError: division by zero")
    assert "patches reference" in findings


@pytest.mark.parametrize(
    ("is_private", "is_volume", "pages", "state", "detail"),
    [
        (False, False, "/dev/shm/ckpt_observe-doctor", OK, "all but the last second that of the machine"),
        (True, False, "/dev/shm/ckpt_observe-doctor", NOTE, "set CKPT_OBSERVE_DIR to a directory on a volume"),
        (True, True, "/dev/shm/ckpt_observe-doctor", NOTE, "unset CKPT_OBSERVE_PAGES_DIR"),
        (True, True, None, OK, "survive the death of the process"),
    ],
)
def test_deaths_that_are_not_covered(doctor, monkeypatch, tmp_path, is_private, is_volume, pages, state, detail):
    """The finding about pages says whether running operations survive the end of a container, and what to do if not."""
    monkeypatch.setattr(state_directory, "has_private_shared_memory", lambda: is_private)
    monkeypatch.setattr(state_directory, "is_on_volume", lambda path: is_volume)
    directory = Path(pages or tmp_path / "pages")
    finding = doctor(CKPT_OBSERVE_PAGES_DIR=directory, CKPT_OBSERVE_EXPORTERS="local")["pages"]
    assert finding.state == state
    assert detail in finding.detail
