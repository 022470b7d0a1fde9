"""Every file that we read back is untrusted. Damage to one never raises, hangs, takes much memory or delays another journal."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest

from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import DamagedFileError, DamagedJournalError
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import read_about, take_counts
from ckpt_observe.support import files
from tests.delivery.damage import KEPT_IDS, DamagedState, use_everything

MEMORY = 1 << 30
"""Bytes of address space that a run may take in addition. A sparse file of 3 GiB that is read as a whole takes more."""


@pytest.fixture(scope="module")
def damaged_state():
    """In shared memory if there is some, where syncing costs nothing."""
    root = tempfile.mkdtemp(prefix="damage-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    yield DamagedState(Path(root))
    shutil.rmtree(root)


@pytest.fixture
def little_memory():
    """Limit the address space, so that reading a huge file as a whole raises MemoryError."""
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def run(damaged_state, seed, rounds):
    rng = random.Random(seed)
    for number in range(rounds):
        damaged_state.restore()
        description = damaged_state.damage(rng)
        try:
            received = use_everything(damaged_state.state)
        except Exception as error:
            raise AssertionError(f"seed {seed}, round {number}, {description}: {error!r}") from error
        assert set(KEPT_IDS) <= set(received), f"seed {seed}, round {number}, {description}: the other journal was not delivered"


def test_undamaged(damaged_state):
    """Without damage everything is delivered: what was behind the cursor, the interrupted operation, and the other journal."""
    damaged_state.restore()
    assert sorted(use_everything(damaged_state.state)) == sorted(["damaged-4", "running", *KEPT_IDS])


@pytest.mark.faults
def test_random_damage(damaged_state, little_memory):
    """A few hundred mutations of all files: nothing is raised, and the other journal is delivered."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    run(damaged_state, seed, 200)


@pytest.mark.faults
def test_much_random_damage(damaged_state, little_memory):
    """The same for 500 mutations, or as many as MUTATIONS says."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    run(damaged_state, seed, int(os.environ.get("MUTATIONS", "500")))


def test_control(damaged_state, little_memory, monkeypatch):
    """Control: if invalid UTF-8 is not taken for damage, the random damage finds it."""

    def read_json(path, kind, limit=1 << 20):
        try:
            return msgspec.json.decode(files.read_file(path, limit), type=kind)
        except msgspec.MsgspecError as error:
            raise DamagedFileError(22, str(error), path) from error

    monkeypatch.setattr(files, "read_json", read_json)
    monkeypatch.setattr("ckpt_observe.journal.cursors.read_json", read_json)
    with pytest.raises(AssertionError, match="UnicodeDecodeError"):
        run(damaged_state, 1, 400)


def journal_of(damaged_state):
    damaged_state.restore()
    [directory] = [path for path in (damaged_state.state / "journals").iterdir() if path.name != damaged_state.good]
    return directory


@pytest.mark.parametrize("name", ["about.json", "cursors.json", "counts.json", "counts-taken.json"])
@pytest.mark.parametrize("position", range(0, 40, 3))
def test_one_bad_byte(damaged_state, name, position):
    """Invalid UTF-8 in one file of one journal stops neither the other journal nor the commands."""
    path = journal_of(damaged_state) / name
    data = bytearray(path.read_bytes())
    data[position % len(data)] = 0xFF
    path.write_bytes(data)
    assert set(KEPT_IDS) <= set(use_everything(damaged_state.state))


def test_damaged_journal_is_quarantined(damaged_state, caplog):
    """A journal of a dead process with a damaged description is moved aside with its records, and reported once."""
    directory = journal_of(damaged_state)
    (directory / "about.json").write_bytes(b'{"version":1,"pid":"\xff"}')
    use_everything(damaged_state.state)
    target = damaged_state.state / "damaged" / directory.name
    assert not directory.exists()
    assert len(list(spool.read_all(str(target)))) == 5
    assert [str(target) in record.getMessage() for record in caplog.records if "about.json" in record.getMessage()] == [True]


@pytest.mark.parametrize("cursor", ["[0,-1]", "[99999999,0]", "[1,7]", "[1,1e3]", "[4611686018427387905,0]", '["x",0]'])
def test_impossible_cursor(damaged_state, cursor):
    """A cursor that cannot be right starts at the beginning: a repetition does no harm, but a loss would."""
    directory = journal_of(damaged_state)
    (directory / "cursors.json").write_text(f'{{"fake":{cursor}}}')
    received = use_everything(damaged_state.state)
    assert {f"damaged-{number}" for number in range(5)} <= set(received)


def test_damaged_counts(damaged_state):
    """Damaged counters are not counted; if it is not known which were taken, none is counted twice."""
    directory = journal_of(damaged_state)
    (directory / "counts-taken.json").write_bytes(b"\xff")
    assert take_counts(str(directory)) == {}
    (directory / "counts.json").write_bytes(b'[["\xff",[],1]]')
    assert take_counts(str(directory)) == {}
    assert (directory / "counts.json.damaged").exists()


def test_page_path_that_is_none(damaged_state):
    """The path of the pages is checked before it is used."""
    directory = journal_of(damaged_state)
    about = json.loads((directory / "about.json").read_bytes())
    for path in ("relative", "/a\0b", "/\ud800"):
        (directory / "about.json").write_text(json.dumps({**about, "pages": path}))
        with pytest.raises(DamagedJournalError):
            read_about(str(directory))
    assert set(KEPT_IDS) <= set(use_everything(damaged_state.state))


def test_sparse_spool(damaged_state, little_memory):
    """A spool that became 3 GiB long is read with little memory. Its records are delivered, and the rest is one damaged line."""
    path = spool.segment_path(str(journal_of(damaged_state)), 1)
    os.truncate(path, 3 << 30)
    outbox = Outbox(os.path.dirname(path), {}, ["new"])
    spans, cursor = outbox.next_batch("new")
    outbox.advance("new", cursor)
    rest = outbox.next_batch("new")[1]
    outbox.advance("new", rest)
    assert (len(spans), rest) == (5, (1, 3 << 30))
    assert outbox.counts["corrupt"] == 1


@pytest.mark.parametrize(
    "name",
    ["about.json", "cursors.json", "counts.json", "set-aside.json", "owner.lock", "drain.lock", "open.pages", "spool-00000001.jsonl"],
)
@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_something_else_in_place_of_a_file(damaged_state, name, kind):
    """A FIFO, a directory or a link to a device in place of a file neither blocks nor stops anything else."""
    path = journal_of(damaged_state) / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert set(KEPT_IDS) <= set(use_everything(damaged_state.state))


def test_spool_of_a_live_process(tmp_path):
    """A FIFO where the next segment is to be created does not block the program: the append fails, and the next one takes another name."""
    writer = spool.Spool(str(tmp_path))
    os.mkfifo(tmp_path / "spool-00000001.jsonl")
    with pytest.raises(FileExistsError):
        writer.append([b"[]"])
    writer.append([b"[]"])
    writer.close()
    assert list(spool.read_all(str(tmp_path))) == [b"[]"]
    assert Path(tmp_path / "spool-00000001.jsonl.damaged").is_fifo()
