"""The doctor on settings, disk, journals and patches."""

from __future__ import annotations

import os

import pytest

from ckpt_observe.cli import doctor as command
from ckpt_observe.cli.doctor import disk
from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM
from ckpt_observe.delivery import outbox
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.instrumentor import Instrumentor, Target
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.tracestore import FILENAME, TraceReader, TraceWriter


def test_settings_have_their_origin(doctor):
    """Each setting says what is in force and where that came from: a variable, the one for traces before the general one, or the default."""
    found = doctor(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://127.0.0.1:1/x", OTEL_TRACES_SAMPLER="always_off", CKPT_OBSERVE_EXPORTERS="local"
    )
    assert found["setting CKPT_OBSERVE_EXPORTERS"].detail == "local (from CKPT_OBSERVE_EXPORTERS)"
    assert found["setting OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"].detail == "http://127.0.0.1:1/x (from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)"
    assert found["setting OTEL_TRACES_SAMPLER"].detail == "always_off (from OTEL_TRACES_SAMPLER)"
    assert found["setting CKPT_OBSERVE_DELIVERY"].detail == "in-process (from default)"
    assert found["setting OTEL_SERVICE_NAME"].detail == "name of the program (from default)"


def test_secrets_are_not_shown(doctor):
    """Neither keys nor the credentials of a URL are in any finding."""
    found = doctor(
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
    assert found["setting LMNR_PROJECT_API_KEY"].detail == "set, not shown (from LMNR_PROJECT_API_KEY)"
    assert "s3cret" not in repr(found)


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
    """Without a port, without a scheme, with a sign of their own: what a library says of such a URL would have them in it."""
    exporter, name, protocol = variables
    found = doctor(
        **{"CKPT_OBSERVE_EXPORTERS": exporter, name: url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    )
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(("given", "told"), [("00-short", True), ("00-" + "1" * 32 + "-" + "2" * 16 + "-01", False), ("", False)])
def test_trace_context_that_is_none(doctor, given, told):
    """A TRACEPARENT that cannot be read has no effect, which nobody would notice but here."""
    assert ("TRACEPARENT" in doctor(TRACEPARENT=given, CKPT_OBSERVE_EXPORTERS="local")) is told


@pytest.mark.parametrize(
    ("name", "verdict", "hint"),
    [
        ("CKPT_OBSERVE_EXPORTER", PROBLEM, "did you mean CKPT_OBSERVE_EXPORTERS?"),
        ("CKPT_OBSERVE_DELIVREY", PROBLEM, "did you mean CKPT_OBSERVE_DELIVERY?"),
        ("CKPT_OBSERVE_XYZ", NOTE, "no such setting"),
    ],
)
def test_misspelt_variables(doctor, name, verdict, hint):
    """A variable that looks like ours and is read by nobody is named, with the one that was perhaps meant."""
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


def test_a_wrong_setting_is_a_finding(doctor):
    """It ends the examination, for without settings there is nothing to look at; what was found before stands."""
    found = doctor(OTEL_TRACES_SAMPLER="dice", CKPT_OBSERVE_DIRR="x")
    assert found["settings"].state == PROBLEM
    assert "'dice'" in found["settings"].detail
    assert "CKPT_OBSERVE_DIRR" in found


@pytest.mark.parametrize(
    ("variables", "subject"), [({"OTEL_SDK_DISABLED": "true"}, "enabled"), ({"CKPT_OBSERVE_EXPORTERS": "none"}, "exporters")]
)
def test_switched_off_is_noted(doctor, variables, subject):
    """Why nothing is seen may be that it was switched off; that is no problem, and is said with its origin."""
    finding = doctor(**variables)[subject]
    assert finding.state == NOTE
    assert next(iter(variables)) in finding.detail


@pytest.mark.parametrize("place", ["/proc/nowhere/state", "file"])
def test_a_directory_that_cannot_be_written(doctor, tmp_path, place):
    """Neither the directory nor the store in it is called good."""
    (tmp_path / "file").write_text("not a directory")
    found = doctor(CKPT_OBSERVE_DIR=place if place.startswith("/") else tmp_path / place / "state")
    assert {found["state directory"].state, found["trace store"].state} == {PROBLEM}


def test_a_store_that_cannot_be_written(doctor, state, monkeypatch):
    """It is written to for real, with nothing: what the disk or SQLite refuses is found."""
    state.mkdir(mode=0o700)
    TraceWriter(state / FILENAME).close()
    before = os.stat(state / FILENAME).st_mtime_ns
    assert doctor()["trace store"].state == OK
    with TraceReader(state / FILENAME) as reader:
        assert reader.newest(1) == []
    assert os.stat(state / FILENAME).st_mtime_ns == before
    (state / FILENAME).write_text("dear diary, " * 100)
    assert doctor()["trace store"].state == PROBLEM


def test_little_room_is_noted(doctor, monkeypatch):
    """Less than an outage may need."""
    monkeypatch.setattr(disk, "SPOOL_LIMIT", 1 << 62)
    finding = doctor()["state directory"]
    assert finding.state == NOTE
    assert "may need" in finding.detail


def test_nothing_is_left(doctor, state, tmp_path):
    """Of the trying."""
    doctor(CKPT_OBSERVE_EXPORTERS="local,prometheus", CKPT_OBSERVE_METRICS_TEXTFILE=tmp_path / "x.prom")
    assert os.listdir(state) == os.listdir(tmp_path / "pages") == []
    assert not (tmp_path / "x.prom").exists()


@pytest.fixture
def journal(state, tmp_path):
    journal = Journal(state, tmp_path / "pages", ["otlp@0123456789ab", "local"], {"service.name": "trainer"})
    yield journal
    journal.remove()


def test_backlog_of_a_journal(doctor, journal):
    """For each destination what it has not had, by its own cursor; of which process, and whether that lives."""
    journal.spool.append([b"x" * 1014])
    box = outbox.Outbox(journal.directory, {}, ["local", "otlp@0123456789ab"])
    box.advance("local", Cursor(1, 1024))
    subject = f"journal {os.path.basename(journal.directory)}"
    finding = doctor()[subject]
    assert finding == (OK, subject, f"of process {os.getpid()} (trainer), alive; waiting: 1.0 KiB for otlp")


def test_journal_of_a_dead_process(doctor, journal):
    """What it left is noted, with what brings it."""
    journal.spool.append([b"x" * 1014])
    journal.release()
    found = doctor()
    finding = found[f"journal {os.path.basename(journal.directory)}"]
    assert finding.state == NOTE
    assert "dead" in finding.detail
    assert "ckpt-observe traces" in finding.detail
    assert found["journals"].detail.startswith("0 of live processes, 1 left by dead ones")


def test_journal_that_is_nearly_full(doctor, journal, monkeypatch):
    """Before anything is dropped it is a problem."""
    monkeypatch.setattr(outbox, "SPOOL_LIMIT", 1500)
    journal.spool.append([b"x" * 1014])
    finding = doctor()[f"journal {os.path.basename(journal.directory)}"]
    assert finding.state == PROBLEM
    assert "68 % full" in finding.detail


def test_an_idle_journal_needs_no_line(doctor, journal):
    """All delivered, owner alive: only counted."""
    found = doctor()
    assert found["journals"].detail.startswith("1 of live processes")
    assert not [subject for subject in found if subject.startswith("journal ")]


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
    """A library that is not there is no problem; one that lacks a callable that we need is."""
    monkeypatch.setattr(registry, "load", lambda *_: [kind()])
    found = doctor()
    assert {subject: found[subject].state for subject in states} == states


@pytest.mark.parametrize("name", ["reference", "ckpt_observe", "*"])
def test_patches_that_are_disabled(doctor, name):
    """Left alone by OpenTelemetry's variable: said."""
    finding = doctor(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=name)["patches reference"]
    assert finding == (NOTE, "patches reference", f"left alone, by {name}")


def test_one_check_that_breaks(doctor, monkeypatch):
    """Does not hide the others."""
    monkeypatch.setitem(command.CHECKS, "journals", lambda _: 1 / 0)
    found = doctor()
    assert found["journals"] == (PROBLEM, "journals", "could not be checked: ZeroDivisionError: division by zero")
    assert "patches reference" in found
