"""`ckpt-observe traces`."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import time

import pytest

from ckpt_observe.cli import traces
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.span import from_json_line
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree

PROGRAM = """
import argparse, sys
from ckpt_observe.cli import traces
parser = argparse.ArgumentParser(prog="ckpt-observe")
traces.register(parser.add_subparsers())
args = parser.parse_args()
sys.exit(args.run(args))
"""


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
    """Runs `ckpt-observe traces ...` over the store."""
    parser = argparse.ArgumentParser(prog="ckpt-observe")
    traces.register(parser.add_subparsers())

    def run(*words):
        args = parser.parse_args(["traces", "--dir", str(store), *words])
        return args.run(args)

    return run


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def listed(text):
    return [line.split("\t")[0][:2] for line in text.splitlines()]


def test_list_in_a_pipe_is_tab_separated(command, capsys):
    """Programs get whole ids and plain numbers, newest first, without header."""
    assert command() == 0
    first = capsys.readouterr().out.splitlines()[0].split("\t")
    assert first == ["b0" + "0" * 30, str(START_UNIX_NANO + 3006 * 1_000_000), "0.005", "1", "1", "0", "task demo"]


def test_list_on_a_terminal_is_a_table(command, monkeypatch):
    """People get a header, short ids and units."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert command() == 0
    header, first, *_ = screen.getvalue().splitlines()
    assert header.split() == ["TRACE", "LAST", "DURATION", "OPERATIONS", "ERRORS", "INTERRUPTED", "NAME"]
    assert first.startswith("b00000000000  ")
    assert first.endswith("task demo")
    assert " 5.0 ms " in first


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--limit", "1"), ["b0"]),
        (("--task", "other"), ["ac"]),
        (("--outcome", "error"), ["b0"]),
        (("--operation", "restore"), ["ac"]),
        (("--operation", "restore", "--outcome", "interrupted"), ["ac"]),
        (("--task", "nobody"), []),
    ],
    ids=str,
)
def test_options_narrow_the_list(command, capsys, words, expected):
    """Each option leaves only what it says; an empty list is no failure."""
    assert command(*words) == 0
    assert listed(capsys.readouterr().out) == expected


def test_since_counts_back_from_now(command, capsys, store):
    """`--since 1h` is the last hour."""
    begin = time.time_ns() - 60 * 1_000_000_000
    exporter = LocalExporter(store)
    exporter.send([make_span(1, "checkpoint.save", trace=0xDD << 120, end_unix_nano=begin)])
    exporter.close()
    assert command("--since", "1h") == 0
    assert listed(capsys.readouterr().out) == ["dd"]


def test_prefix_shows_the_tree(command, capsys):
    """The beginning of an id shows that trace as a tree, without colours in a pipe."""
    assert command("ab") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["task demo", "└─ checkpoint.save"]
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)


def test_ambiguous_prefix_lists_candidates(command, capsys):
    """A prefix of two traces shows neither, names both, and is wrong usage."""
    assert command("a") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ambiguous" in captured.err
    assert listed(captured.err)[1:] == ["ab", "ac"]


def test_unknown_trace_is_not_found(command, capsys):
    """No such trace has its own exit code, and a hint."""
    assert command("ff") == 4
    assert "no trace begins with 'ff'" in capsys.readouterr().err


def test_no_store_is_not_found_and_is_not_made(tmp_path, capsys):
    """Asking before anything was recorded says so and leaves nothing."""
    args = argparse.Namespace(dir=str(tmp_path / "none"), trace=None)
    assert traces.run(args) == 4
    assert "nothing is recorded yet" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_foreign_store_is_an_error(tmp_path, capsys):
    """A file that is not ours is one line of explanation, not a traceback."""
    (tmp_path / "traces.db").write_text("not a database " * 100)
    assert traces.run(argparse.Namespace(dir=str(tmp_path), trace=None)) == 1
    assert "not a database" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "count"), [((), 15), (("ac",), 7)], ids=["all", "one"])
def test_json_is_one_span_a_line(command, capsys, words, count):
    """Every line is a span in the form that all places print, parents first."""
    assert command("--json", *words) == 0
    spans = [from_json_line(line) for line in capsys.readouterr().out.splitlines()]
    assert len(spans) == count
    assert spans[0].name.startswith("task ")
    assert {span.resource["service.name"] for span in spans} == {"test"}


@pytest.mark.parametrize("words", [("--limit", "0"), ("--limit", "x"), ("--since", "yesterday"), ("--outcome", "great")], ids=str)
def test_wrong_usage_is_exit_two(command, capsys, words):
    """A value that cannot be is refused with its reason."""
    with pytest.raises(SystemExit) as caught:
        command(*words)
    assert caught.value.code == 2
    assert words[1] in capsys.readouterr().err


def test_closed_pipe_ends_cleanly(store):
    """`ckpt-observe traces --json | head -1` says nothing on standard error and exits with 0."""
    exporter = LocalExporter(store)
    exporter.send([make_span(number, "checkpoint.save", trace=0xEE, attributes={"own": "x" * 1000}) for number in range(1, 2000)])
    exporter.close()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "traces", "--json", "--dir", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
