"""The commands that look into stores, with every store that needs no server, and with hostile input."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_commands import CHECKS, IDS, TASK, Commands, fill

from ckpt_observe.cli.store_listing import format_moment
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.ciphers import AeadCipher
from ckpt_observe.tuning import growth

GOLDEN = Path(__file__).parents[1] / "readers" / "golden"


@pytest.fixture
def run(capsys):
    return Commands(capsys)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request, monkeypatch):
    """The time zone of the machine."""
    with monkeypatch.context() as environment:
        environment.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.fixture
def store(tmp_path):
    """A file store, and its path."""
    fill(f"file://{tmp_path}/store")
    return tmp_path / "store"


def damage(path):
    """Change one byte of a payload, without its length."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["file", "jsonl", "sqlite", "git"])
def test_commands_with_every_store(run, tmp_path, kind):
    """Each command works with each store, by URL, and its JSON matches its schema."""
    url = f"{kind}://{tmp_path}/store"
    fill(url)
    for check in CHECKS:
        check(run, url)


@pytest.mark.parametrize("kind", ["file", "jsonl", "sqlite", "git"])
def test_path_of_a_store_is_recognized(run, tmp_path, kind):
    """A path needs no scheme: the content says which store it is."""
    fill(f"{kind}://{tmp_path}/store")
    assert len(run("list", tmp_path / "store", "--json").lines) == 5
    assert run("extract", tmp_path / "store", TASK).code == 0


@pytest.mark.parametrize("command", ["list", "show", "log", "extract", "verify", "stats"])
def test_url_of_a_path_has_no_options(run, tmp_path, command):
    """The message names the option and not a missing file; a question mark in a name still works."""
    fill(f"sqlite://{tmp_path}/store.db")
    arguments = [TASK] if command in ("log", "extract") else []
    done = run(command, f"sqlite://{tmp_path}/store.db?busy=1", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "a sqlite URL has no options: leave out '?busy=1'" in done.err
    (tmp_path / "store.db").rename(tmp_path / "store.db?busy=1")
    for mark in ("?", "%3F"):
        assert run(command, f"sqlite://{tmp_path}/store.db{mark}busy=1", *arguments).code == 0


@pytest.mark.parametrize("command", ["list", "show", "log", "extract", "verify", "prune", "drill", "stats"])
@pytest.mark.parametrize("scheme", ["", "file://", "sqlite://", "jsonl://", "git://"])
def test_missing_store(run, tmp_path, command, scheme):
    """A path that does not exist is not found, and is not created."""
    arguments = [TASK] if command in ("log", "extract") else ["--keep-last", "1"] if command == "prune" else []
    done = run(command, f"{scheme}{tmp_path}/nothing", *arguments)
    assert (done.code, done.out) == (4, "")
    assert "does not exist" in done.err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("list", "nope://x"), 2, "unknown store 'nope'"),
        (("list", ""), 4, "does not exist"),
        (("show", "STORE", "x" * 300), 2, "256"),
        (("show", "STORE", "a\nb"), 2, "control"),
        (("list", "STORE", "--since", "soon"), 2, "nor a time such as"),
        (("list", "STORE", "--since", "99999999999d"), 2, "nor a time such as"),
        (("list", "STORE", "--min-size", "big"), 2, "not a size"),
        (("list", "STORE", "--param", "lr"), 2, "NAME=VALUE"),
        (("list", "STORE", "--limit", "0"), 2, "positive"),
        (("prune", "STORE", "--keep-for", "long"), 2, "not a duration"),
        (("extract", "STORE", TASK, "--format", "xml"), 2, "invalid choice"),
        (("diff", "STORE", "STORE", "STORE"), 2, "FILE FILE"),
        (("diff", "STORE", TASK), 4, "'run-42' does not exist; diff compares two files (FILE FILE) or two checkpoints of a task"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_wrong_arguments(run, store, arguments, code, text):
    """Wrong input is a usage error that says what is wrong."""
    done = run(*(store if argument == "STORE" else argument for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert "Traceback" not in done.err


HOSTILE_FILES = {
    "empty": b"",
    "zeros": b"\x00" * 100,
    "truncated zip": b"PK\x03\x04 truncated",
    "damaged database": b"SQLite format 3\x00" + b"x" * 200,
    "noise": random.Random(1).randbytes(500),
}


def test_option_of_a_jsonl_store(run, tmp_path):
    """Its URL may have an option, which the commands leave to the store."""
    url = f"jsonl://{tmp_path}/store?gzip"
    fill(url)
    for check in CHECKS:
        check(run, url)
    assert "unknown option ?zip" in run("list", f"jsonl://{tmp_path}/store?zip").err


def test_absolute_and_relative_url(run, tmp_path, monkeypatch):
    """Two slashes are relative, three absolute. Who follows SQLAlchemy reads which path was meant, and how to write the other one."""
    monkeypatch.chdir(tmp_path)
    fill("sqlite://runs.db")
    assert run("list", "sqlite://runs.db").code == 0
    done = run("list", "sqlite:///runs.db")
    assert (done.code, done.out) == (4, "")
    assert "'sqlite:///runs.db' means '/runs.db', which does not exist; for the relative path, write sqlite://runs.db" in done.err
    assert f"'sqlite://other.db' ({tmp_path}/other.db) does not exist" in run("list", "sqlite://other.db").err


@pytest.mark.usefixtures("zone")
def test_times_of_tables_can_be_typed(run, tmp_path):
    """Tables print local times, and `at:` and the filters read a time without a zone as local: what is printed can be typed."""
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save("run", {"a": 1}, id="only")
    store = tmp_path / "store"
    printed = dt.datetime.fromisoformat(re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", run("list", store).out)[0])
    before, after = (str(printed + seconds * dt.timedelta(seconds=1)) for seconds in (-1, 1))
    assert f"created       {printed}\n" in run("show", store, "run", "only").out
    for command in (("show", store, "run"), ("extract", store, "run")):
        assert [run(*command, f"at:{moment}").code for moment in (before, after)] == [4, 0]
    assert [run("diff", store, "run", "only", f"at:{moment}").code for moment in (before, after)] == [4, 0]
    assert [bool(run("list", store, "--until", moment).out) for moment in (before, after)] == [False, True]
    assert [bool(run("list", store, "--since", moment).out) for moment in (before, after)] == [True, False]


@pytest.mark.parametrize("fields", [(1, 1, 1), (9999, 12, 31, 23, 59, 59)])
@pytest.mark.parametrize("hours", [-14, 0, 14])
@pytest.mark.usefixtures("zone")
def test_a_time_that_is_not_local(fields, hours):
    """The header of a foreign checkpoint may have any time, also one that no local time can express."""
    zone = dt.timezone(hours * dt.timedelta(hours=1))
    assert format_moment(dt.datetime(*fields, tzinfo=zone)).startswith(("0001-01-0", "9999-12-31"))


def test_forecast_says_that_it_includes_growth(run, tmp_path, monkeypatch):
    """The checkpoints grow, and the forecast counts with that: it says so. Saves of less than a minute have no forecast."""
    fill(str(tmp_path / "store"))
    assert "at the present rate" not in run("stats", tmp_path / "store").out
    monkeypatch.setattr(growth, "MIN_SECONDS", 1e-9)
    assert "at the present rate and growth" in run("stats", tmp_path / "store").out


@pytest.mark.parametrize("command", ["list", "show", "stats", "verify", "diff"])
def test_unknown_format(run, tmp_path, command):
    """The message lists the formats and says what to name. It does not advise to install something."""
    (tmp_path / "notes.txt").write_text("no checkpoint")
    done = run(command, tmp_path / "notes.txt", *([tmp_path / "notes.txt"] if command == "diff" else []))
    assert (done.code, done.out) == (1, "")
    assert "is not known; known are langgraph-sqlite" in done.err
    assert "Name the checkpoint itself" in done.err
    assert "nstall" not in done.err


@pytest.mark.parametrize("name", HOSTILE_FILES)
@pytest.mark.parametrize("command", ["list", "show", "verify", "stats"])
def test_hostile_file(run, tmp_path, command, name):
    """A file that is no checkpoint gives a typed error and an exit code, not a traceback."""
    (tmp_path / "file").write_bytes(HOSTILE_FILES[name])
    done = run(command, tmp_path / "file")
    assert done.code in (1, 2, 3)
    assert done.err.startswith("ckpt-observe: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [("verify", "--quarantine"), ("prune", "--keep-last", "1", "--yes"), ("drill",)], ids=str)
def test_checkpoints_of_others_are_left_alone(run, tmp_path, arguments):
    """A directory of Lightning looks like a file store, and none of its files is moved or removed."""
    (tmp_path / "version_0" / "checkpoints").mkdir(parents=True)
    path = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    shutil.copy(GOLDEN / "torch.pt", path)
    command, *options = arguments
    done = run(command, tmp_path / "version_0", *options)
    assert (done.code, "store of ckpt_observe.core" in done.err) == (2, True)
    assert list((tmp_path / "version_0").rglob("*.*")) == [path]


def test_damage_is_found(run, store):
    """`verify` names the damaged checkpoint, exits with 3, and can move it aside."""
    damage(store / TASK / "step-001.ckpt")
    done = run("verify", store, "--json")
    assert done.code == 3
    [bad] = [line for line in done.lines if line["state"] != "good"]
    assert (bad["id"], bad["state"], bad["code"]) == ("step-001", "damaged", "integrity.checksum_mismatch")
    assert "step-001" in run("verify", store, "--quarantine").out
    assert run("verify", store).code == 0


def test_prune_spares_a_task_whose_newest_checkpoint_is_damaged(run, store):
    """If the newest checkpoint is damaged, the older ones are all that can be restored, so none is removed."""
    damage(store / TASK / "step-003.ckpt")
    done = run("prune", store, TASK, "--keep-last", "1", "--yes", "--json")
    assert {line["reason"] for line in done.lines} == {"the newest checkpoint is damaged (integrity.checksum_mismatch)"}
    assert len(list((store / TASK).glob("*.ckpt"))) == 4


def test_encrypted_store(run, tmp_path, monkeypatch):
    """Headers are readable without the key. `extract` needs it, and reads it from the environment."""
    pytest.importorskip("cryptography")
    key = "ab" * 32
    fill(f"file://{tmp_path}/store", encryption=AeadCipher(bytes.fromhex(key)))
    monkeypatch.delenv("CKPT_ENCRYPTION_KEY", raising=False)
    assert len(run("list", tmp_path / "store", "--json").lines) == 5
    refused = run("extract", tmp_path / "store", TASK)
    assert (refused.code, refused.out) == (2, "")
    assert "CKPT_ENCRYPTION_KEY" in refused.err
    monkeypatch.setenv("CKPT_ENCRYPTION_KEY", key)
    assert run("extract", tmp_path / "store", TASK).code == 0
    [version] = [line for line in run("log", tmp_path / "store", TASK, "--json").lines if line["key"] == "plan"]
    assert "digest" not in version


def test_pickle_is_never_loaded(run, tmp_path):
    """`show` looks into a store of pickles; `extract` refuses it."""
    fill(f"file://{tmp_path}/store", format="pickle")
    assert "pickle" in run("show", tmp_path / "store").err
    done = run("extract", tmp_path / "store", TASK)
    assert (done.code, done.out) == (1, "")
    assert "pickle" in done.err


def test_files_are_checkpoints(run, tmp_path):
    """A file of another library is listed, shown, compared and checked without a task."""
    numpy = pytest.importorskip("numpy")
    for name, factor in (("old", 1), ("new", 2)):
        numpy.savez(
            tmp_path / f"{name}.npz",
            weights=numpy.ones((4, 8)) * factor,
            bias=numpy.zeros(3),
            **({"extra": numpy.ones(1)} if factor == 2 else {}),
        )
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    [listed] = run("list", old, "--json").lines
    assert (listed["format"], listed["keys"]) == ("npz", 2)
    [contents] = run("show", old, "--json").lines
    assert contents["entries"][0]["shape"] == [4, 8]
    assert "weights" in run("show", old).out
    [store] = run("stats", old, "--json").lines
    assert store["keys"][0] == {"name": "weights", "size": contents["entries"][0]["size"]}
    done = run("diff", old, new, "--json")
    assert (done.code, [(change["path"], change["kind"]) for change in done.lines[0]["changes"]]) == (
        3,
        [(["extra"], "added"), (["weights"], "changed")],
    )
    assert run("diff", old, old).code == 0
    assert run("verify", old, "--json").lines == [{"id": str(old), "state": "good", "checked": "structure"}]
    for command in ("extract", "log", "prune", "drill"):
        arguments = ["--keep-last", "1"] if command == "prune" else [TASK] if command != "drill" else []
        assert run(command, old, *arguments).code == 2
    assert run("list", old, "--tag", "x").code == 2


LANGGRAPH = Path(__file__).parents[1] / "readers" / "golden" / "langgraph.db"
"""A database of a real run, with a thread `large` whose channel `document` is large."""


def test_checkpoints_of_a_subgraph(run, tmp_path):
    """`list` says which checkpoints are of a subgraph, the newest first; `log` compares those of the outermost graph."""
    file = shutil.copyfile(LANGGRAPH, tmp_path / "langgraph.db")
    expected = [line["first_with_value"] for line in run("log", file, "large", "--json").lines]
    newest = run("list", file, "large", "--json").lines
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE checkpoints SET thread_id = 'large', checkpoint_ns = 'sub:1' WHERE thread_id = 'small'")
    listed = run("list", file, "large", "--json").lines
    assert listed[:4] == newest
    assert [line["namespace"] for line in listed[4:]] == ["sub:1"] * 4
    assert "sub:1" in run("list", file, "large").out
    assert [line["first_with_value"] for line in run("log", file, "large", "--json").lines] == expected
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM checkpoints WHERE checkpoint_ns = ''")
    assert len(run("log", file, "large", "--key", "document", "--json").lines) == 4, "a thread that has only those of a subgraph"


def test_langgraph_database(run):
    """`show` names the large channel, and channels plus other are the bytes in the database; all commands work by thread."""
    with closing(sqlite3.connect(LANGGRAPH)) as connection:
        [size] = connection.execute("SELECT sum(length(checkpoint)) FROM checkpoints").fetchone()
    [contents] = run("show", LANGGRAPH, "--json").lines
    assert contents["entries"][0]["name"] == "document"
    assert sum(entry["size"] for entry in contents["entries"]) + contents["other_size"] == contents["size"] == size
    channels, threads = run("show", LANGGRAPH).out.split("\n\n")[1:]
    assert channels.splitlines()[0].startswith("CHANNEL")
    assert channels.splitlines()[1].startswith("document")
    assert threads.splitlines()[0].startswith("THREAD")
    assert {line["task"]: line["type"] for line in run("list", LANGGRAPH, "--json").lines} == {"large": "task", "small": "task"}
    checkpoints = run("list", LANGGRAPH, "large", "--json").lines
    assert {(line["type"], line["task"]) for line in checkpoints} == {("checkpoint", "large")}
    assert [line["step"] for line in checkpoints] == [2, 1, 0, -1]
    newest = checkpoints[0]["id"]
    assert run("show", LANGGRAPH, "large", newest, "--json").lines == run("show", LANGGRAPH, "large", "latest", "--json").lines
    assert run("diff", LANGGRAPH, "large", "step:1", "latest", "--json").code == 3
    versions = run("log", LANGGRAPH, "large", "--key", "document", "--json").lines
    assert versions[-1]["first_with_value"] == next(line["id"] for line in versions if line.get("size"))
    assert run("verify", LANGGRAPH, "--json").lines[0]["state"] == "good"
    *tasks, store = run("stats", LANGGRAPH, "--json").lines
    assert (tasks[0]["task"], store["keys"][0]["name"]) == ("large", "document")
    missing = run("show", LANGGRAPH, "larg")
    assert (missing.code, missing.out) == (4, "")
    for command, arguments in (("extract", ["large"]), ("prune", ["--keep-last", "1"]), ("drill", [])):
        assert run(command, LANGGRAPH, *arguments).code == 2


def test_limit_counts_on_each_level(run, tmp_path):
    """`--limit` also shortens nested keys, of which a model has hundreds, and says how many it left out."""
    state = {"model": {f"layer{number}": "x" * (100 - number) for number in range(50)}, "epoch": 1, "seed": 2}
    (tmp_path / "state.pkl").write_bytes(pickle.dumps(state))
    rows = run("show", tmp_path / "state.pkl", "--depth", "2", "--limit", "2").out.split("\n\n")[1].splitlines()[1:]
    names = [re.match(r" *\S+( more \(--limit\))?", row)[0] for row in rows]
    assert names == ["model", "  layer0", "  layer1", "  48 more (--limit)", "epoch", "1 more (--limit)", "other"]
    assert len(run("show", tmp_path / "state.pkl", "--depth", "2", "--json").lines[0]["entries"][0]["children"]) == 50


def test_damaged_file_is_found(run, tmp_path):
    """A truncated file of another library is damaged."""
    numpy = pytest.importorskip("numpy")
    numpy.savez(tmp_path / "x.npz", a=numpy.ones(100))
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-40])
    done = run("verify", tmp_path / "x.npz", "--json")
    assert (done.code, done.lines[0]["state"]) == (3, "damaged")


def test_closed_pipe(command, store):
    """`list ... | head` ends without an error."""
    with subprocess.Popen(
        [sys.executable, "-m", "ckpt_observe", "list", str(store), "--json", "--limit", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ},
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_names_are_escaped(run, tmp_path):
    """A name cannot move the cursor or break a line of a table."""
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save("run", {"\x1b[2Jkey\nline": 1}, id=IDS[0], tags=("\x1b[31mred",))
    assert "\x1b" not in run("list", tmp_path / "store").out
    shown = run("show", tmp_path / "store", "run", "latest").out
    assert "\x1b" not in shown
    assert r"\x1b[2Jkey\nline" in shown
    for command in (("stats",), ("log", "run"), ("extract", "run")):
        out = run(command[0], tmp_path / "store", *command[1:]).out
        assert "2Jkey" in out
        assert "\x1b" not in out


def test_filters_need_a_store_of_the_core(run, tmp_path):
    """A filter that does not apply is an error, whatever its value: `--min-step 0` is a filter, too."""
    (tmp_path / "state.pkl").write_bytes(pickle.dumps({"x": 1}))
    done = run("list", tmp_path / "state.pkl", "--min-step", "0")
    assert (done.code, "--min-step" in done.err) == (2, True)
