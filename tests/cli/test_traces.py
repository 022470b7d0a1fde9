"""`ckpt-observe traces`."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest
from msgspec import structs

from ckpt_observe import libraries
from ckpt_observe.cli.library_notes import NOTES
from ckpt_observe.cli.main import main
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


@pytest.fixture
def store(tmp_path):
    exporter = LocalExporter(tmp_path)
    exporter.send(make_tree(0xAB << 120, start=1000))
    exporter.send(make_tree(0xAC << 120, start=2000, task="other", operations=("save", "restore"), outcome="interrupted"))
    exporter.send(make_tree(0xB0 << 120, start=3000, outcome="error"))
    yield tmp_path
    exporter.close()


@pytest.fixture
def command(store):
    """Run `ckpt-observe traces ...` on the store."""

    def run(*arguments):
        return main(["traces", "--dir", str(store), *arguments])

    return run


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def listed(text):
    return [line.split("\t")[0][:2] for line in text.splitlines()]


def test_tab_separated_list(command, capsys):
    """For programs, the list has full ids and plain numbers, newest first, without a header."""
    assert command("--tsv") == 0
    first = capsys.readouterr().out.splitlines()[0].split("\t")
    assert first == ["b0" + "0" * 30, str(START_UNIX_NANO + 3006 * 1_000_000), "0.005", "1", "1", "0", "task demo"]


@pytest.mark.parametrize(("limit", "is_cut"), [("2", True), ("3", False)])
@pytest.mark.parametrize("form", [(), ("--tsv",), ("--json",)], ids=str)
def test_limit_is_mentioned(command, capsys, form, limit, is_cut):
    """A list that leaves traces out says so; one that is complete does not."""
    assert command("--limit", limit, *form) == 0
    assert (f"there are more than {limit}" in capsys.readouterr().err) == is_cut


@pytest.mark.parametrize("screen", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_list_is_a_table(command, monkeypatch, screen):
    """On a terminal and in a pipe, the list has a header, short ids and units."""
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    assert command() == 0
    header, first, *_ = screen.getvalue().splitlines()
    assert header.split() == ["TRACE", "LAST", "DURATION", "OPERATIONS", "ERRORS", "INTERRUPTED", "NAME"]
    assert first.startswith("b00000000000  ")
    assert first.rstrip().endswith("task demo")
    assert " 5.0 ms " in first


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--limit", "1"), ["b0"]),
        (("--task", "other"), ["ac"]),
        (("--outcome", "error"), ["b0"]),
        (("--operation", "restore"), ["ac"]),
        (("--operation", "restore", "--outcome", "interrupted"), ["ac"]),
        (("--task", "test", "--limit", "2"), ["b0", "ac"]),
        (("--outcome", "running"), []),
    ],
    ids=str,
)
def test_options_narrow_the_list(command, capsys, arguments, expected):
    """Each option filters the list, `--task` also by program; an empty list is not an error."""
    assert command("--tsv", *arguments) == 0
    assert listed(capsys.readouterr().out) == expected


def test_since_counts_back_from_now(command, capsys, store):
    """`--since 1h` lists the traces of the last hour."""
    begin = time.time_ns() - 60 * 1_000_000_000
    exporter = LocalExporter(store)
    exporter.send([make_span(1, "checkpoint.save", trace=0xDD << 120, end_unix_nano=begin)])
    exporter.close()
    assert command("--since", "1h", "--tsv") == 0
    assert listed(capsys.readouterr().out) == ["dd"]


def test_prefix_shows_the_tree(command, capsys):
    """An ID prefix shows that trace as a tree, without colours in a pipe."""
    assert command("ab") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["task demo", "└─ checkpoint.save"]
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(("filters", "trace_id"), [((), "b0"), (("--outcome", "interrupted"), "ac")], ids=["all", "filtered"])
def test_last_shows_the_newest_trace(command, capsys, filters, trace_id):
    """`--last` shows the newest trace that matches, as a tree, or as JSON."""
    assert command("--last", *filters) == 0
    tree = capsys.readouterr().out
    assert command(trace_id) == 0
    assert tree == capsys.readouterr().out
    assert command("--last", "--json", *filters) == 0
    assert {from_json_line(line).trace_id[:2] for line in capsys.readouterr().out.splitlines()} == {trace_id}


def test_last_names_the_newest_run(command, capsys, store):
    """If the newest trace is an operation outside a run, `--last` names the newest run of the same program.

    Controls: the newest trace is a run itself, or the operation is of another program.
    """
    assert command("--last") == 0
    assert "outside a run" not in capsys.readouterr().err
    exporter = LocalExporter(store)
    exporter.send([make_span(1, "checkpoint.load", trace=0xDD << 120, end_unix_nano=START_UNIX_NANO + 10_000_000_000)])
    assert command("--last") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("checkpoint.load")
    assert f"outside a run; `ckpt-observe traces b00000000000 --dir {store}` shows the newest run" in shown.err
    other = make_span(1, "checkpoint.load", trace=0xEE << 120, end_unix_nano=START_UNIX_NANO + 20_000_000_000)
    exporter.send([structs.replace(other, resource={"service.name": "other"})])
    exporter.close()
    assert command("--last") == 0
    assert "outside a run" not in capsys.readouterr().err


def test_last_of_nothing_is_not_found(command, capsys):
    """`--last` with a filter that nothing matches has the exit code of a missing trace."""
    assert command("--last", "--task", "other", "--operation", "list") == 4
    assert "no matching traces" in capsys.readouterr().err


def test_ambiguous_prefix_lists_candidates(command, capsys):
    """A prefix of two traces is wrong usage; the error lists both."""
    assert command("a") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ambiguous" in captured.err
    assert all(f"{prefix}{'0' * 30}" in captured.err for prefix in ("ab", "ac"))


def test_unknown_trace_is_not_found(command, capsys):
    """An unknown trace has its own exit code and a hint."""
    assert command("ff") == 4
    assert "starts with 'ff'" in capsys.readouterr().err


def test_missing_store_is_not_created(tmp_path, capsys):
    """Without a store, the command reports that nothing is recorded and creates nothing."""
    assert main(["traces", "--dir", str(tmp_path / "none")]) == 4
    error = capsys.readouterr().err
    assert "no traces recorded yet" in error
    assert "ckpt-observe demo" in error
    assert not (tmp_path / "none").exists()


def test_foreign_store_is_an_error(tmp_path, capsys):
    """A store that is not a database gives a one-line error, not a traceback."""
    (tmp_path / "operations.db").write_text("not a database " * 100)
    assert main(["traces", "--dir", str(tmp_path)]) == 1
    assert "not a database" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "count"), [((), 15), (("ac",), 7)], ids=["all", "one"])
def test_json_has_one_span_per_line(command, capsys, arguments, count):
    """Every line is a span as JSON, parents first."""
    assert command("--json", *arguments) == 0
    spans = [from_json_line(line) for line in capsys.readouterr().out.splitlines()]
    assert len(spans) == count
    assert spans[0].name.startswith("task ")
    assert {span.resource["service.name"] for span in spans} == {"test"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--limit", "0"),
        ("--limit", "x"),
        ("--since", "yesterday"),
        ("--outcome", "great"),
        ("--json", "--tsv"),
        ("ab", "--last"),
    ],
    ids=str,
)
def test_wrong_usage_is_exit_two(command, capsys, arguments):
    """An invalid value is rejected and named."""
    with pytest.raises(SystemExit) as caught:
        command(*arguments)
    assert caught.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_closed_pipe_ends_cleanly(store):
    """`ckpt-observe traces --json | head -1` prints nothing on standard error and exits with 0."""
    exporter = LocalExporter(store)
    exporter.send([make_span(number, "checkpoint.save", trace=0xEE, attributes={"padding": "x" * 1000}) for number in range(1, 2000)])
    exporter.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "ckpt_observe", "traces", "--json", "--dir", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_library_by_either_name(store, command, capsys):
    """A library has one name in settings and another on spans: both select, and an unknown one is rejected with a similar name."""
    exporter = LocalExporter(store)
    exporter.send([make_span(1, "checkpoint.save", trace=0xDC << 120, attributes={names.OPERATION: "save", names.SYSTEM: "torch.dcp"})])
    exporter.close()
    for name in ("torch-dcp", "torch.dcp"):
        assert command("--tsv", "--library", name) == 0
        assert listed(capsys.readouterr().out) == ["dc"]
    assert command("--library", "torch-dpc") == 2
    assert "--library: 'torch-dpc' is not a checkpoint library; did you mean 'torch-dcp'?" in capsys.readouterr().err


def test_library_that_a_program_named_itself(store, command, capsys):
    """Own code may set `checkpoint.system` to any value: `--library` accepts what is recorded."""
    exporter = LocalExporter(store)
    exporter.send([make_span(1, "checkpoint.save", trace=0xDC << 120, attributes={names.OPERATION: "save", names.SYSTEM: "own-engine"})])
    exporter.close()
    assert command("--tsv", "--library", "own-engine") == 0
    assert listed(capsys.readouterr().out) == ["dc"]


def test_names_of_libraries_on_spans():
    """The table of the documentation has the same name on the spans of each library."""
    documented = {name: notes.attributes[names.SYSTEM].strip("`") for name, notes in NOTES.items() if name != "reference"}
    assert documented == {name: libraries.system_of(name) for name in documented}
