"""The spool: whole records or none, whatever happened to the file."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from ckpt_observe.journal import spool
from ckpt_observe.journal.spool import Cursor, Spool, read, read_all
from tests.journal.conftest import open_below

RECORDS = [b'["record %d"]' % number for number in range(5)]


@pytest.fixture
def writer(tmp_path):
    made = Spool(str(tmp_path))
    yield made
    made.close()


def everything(directory):
    return list(read_all(str(directory)))


def test_round_trip(tmp_path, writer):
    """What was appended is read, in order, from any cursor."""
    writer.append(RECORDS[:2])
    first = read(str(tmp_path), Cursor())
    writer.append(RECORDS[2:])
    writer.sync()
    assert first.payloads == RECORDS[:2]
    assert read(str(tmp_path), first.end).payloads == RECORDS[2:]
    assert everything(tmp_path) == RECORDS
    last = read(str(tmp_path), read(str(tmp_path), first.end).end)
    assert (last.payloads, last.corrupt) == ([], 0)


def test_segments_rotate(tmp_path, writer, monkeypatch):
    """A segment that is full is closed, and reading goes on in the next."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    for each in RECORDS:
        writer.append([each])
    assert len(spool.segments(str(tmp_path))) == 3
    assert everything(tmp_path) == RECORDS
    assert spool.size(str(tmp_path)) == sum(len(each) + 10 for each in RECORDS)


def test_full_segments_are_synced(tmp_path, writer, monkeypatch):
    """What was appended before a segment was full survives the machine as well as what came after."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    synced, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), fsync(fd)))
    for each in RECORDS:
        writer.append([each])
    writer.sync()
    assert {os.stat(spool.segment_path(str(tmp_path), number)).st_ino for number in spool.segments(str(tmp_path))} == synced
    writer.close()
    assert open_below(tmp_path) == []


def test_a_signal_handler_appends_too(tmp_path, writer, monkeypatch):
    """In the middle of an append a handler is refused, and its records wait: it might close the very segment that is written to."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    write = os.write

    def handler_comes(fd, data):
        monkeypatch.undo()
        with pytest.raises(OSError, match="in progress"):
            writer.append(RECORDS[1:])
        return write(fd, data)

    monkeypatch.setattr(os, "write", handler_comes)
    writer.append(RECORDS[:1])
    writer.append(RECORDS[1:])
    assert everything(tmp_path) == RECORDS


def test_a_later_writer_begins_a_new_segment(tmp_path, writer):
    """Nobody writes behind what a dead process may have left half written."""
    writer.append(RECORDS[:1])
    with open(spool.segment_path(str(tmp_path), 1), "ab") as file:
        file.write(b"0badc0de half a li")
    later = Spool(str(tmp_path))
    later.append(RECORDS[1:])
    later.close()
    assert everything(tmp_path) == RECORDS
    second = read(str(tmp_path), read(str(tmp_path), Cursor()).end)
    assert second.corrupt == 1, "the half line is counted"


@pytest.fixture
def original(tmp_path, writer):
    writer.append(RECORDS)
    path = spool.segment_path(str(tmp_path), 1)
    with open(path, "rb") as file:
        return path, file.read()


def test_every_flipped_byte(tmp_path, original):
    """One byte changed anywhere: never a record that was not written, at most two are missing, and the damage is counted."""
    path, data = original
    for position in range(len(data)):
        for flip in (0x01, 0x80, data[position] ^ 0x0A):  # the last makes a newline
            if not flip:
                continue
            damaged = bytearray(data)
            damaged[position] ^= flip
            with open(path, "wb") as file:
                file.write(damaged)
            found = read(str(tmp_path), Cursor())
            assert set(found.payloads) <= set(RECORDS)
            assert len(found.payloads) >= 3
            assert found.corrupt or (position >= data.rindex(b"\n", 0, -1)), position


def test_every_truncation(tmp_path, original):
    """Cut at any length: the records before the cut, and no other."""
    path, data = original
    for length in range(len(data)):
        with open(path, "wb") as file:
            file.write(data[:length])
        assert read(str(tmp_path), Cursor()).payloads == RECORDS[: data[:length].count(b"\n")]


def test_segment_removed_since_it_was_listed(tmp_path, writer, monkeypatch):
    """Whoever delivers removes what all have had, while another process reads on: what is in the next segment is not overlooked."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 1)
    writer.append(RECORDS[:1])
    before = spool.segments(str(tmp_path))
    writer.append(RECORDS[1:2])
    os.unlink(spool.segment_path(str(tmp_path), before[0]))
    listings = iter([before])
    listed = spool.segments
    monkeypatch.setattr(spool, "segments", lambda directory: next(listings, None) or listed(directory))
    assert read(str(tmp_path), Cursor()).payloads == RECORDS[1:2]


def test_removed_while_running(tmp_path, writer):
    """A segment that somebody removed is not written into any more: the next record is readable."""
    writer.append(RECORDS[:1])
    os.unlink(spool.segment_path(str(tmp_path), 1))
    writer.append(RECORDS[1:2])
    assert everything(tmp_path) == RECORDS[1:2]


def test_directory_removed(tmp_path):
    """No directory any more: an OSError, for the pool to deal with, each time."""
    directory = tmp_path / "gone"
    directory.mkdir()
    writer = Spool(str(directory))
    directory.rmdir()
    for _ in range(2):
        with pytest.raises(OSError):
            writer.append(RECORDS)


def test_short_write(tmp_path, writer, monkeypatch):
    """A disk that fills up in the middle: an OSError, and what was written before and what is written again is whole."""
    writer.append(RECORDS[:1])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2 + 3]))
    with pytest.raises(OSError):
        writer.append(RECORDS[1:3])
    monkeypatch.undo()
    writer.append(RECORDS[1:3])
    found = everything(tmp_path)
    assert set(found) == set(RECORDS[:3])
    assert found[-2:] == RECORDS[1:3]


def test_file_size_limit(tmp_path):
    """The kernel's own refusal (RLIMIT_FSIZE): the same."""
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            writer = Spool(str(tmp_path))
            writer.append(RECORDS[:1])
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            refused = 0
            for _ in range(2):
                try:
                    writer.append(RECORDS[1:4])
                except OSError:
                    refused += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            writer.append(RECORDS[1:4])
            os._exit(refused)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert set(everything(tmp_path)) == set(RECORDS[:4])


def test_large_record(tmp_path, writer):
    """A record beyond what is read at once is read whole."""
    large = b'["' + b"x" * 3000 + b'"]'
    writer.append([large, RECORDS[0]])
    first = read(str(tmp_path), Cursor(), limit=100)
    assert first.payloads == [large]
    assert read(str(tmp_path), first.end, limit=100).payloads == [RECORDS[0]]


def test_stamp(tmp_path):
    """It changes with every record behind the cursor, in the same segment and in a new one; a fresh directory has none."""
    writer = spool.Spool(str(tmp_path))
    writer.append([b"[1]"])
    cursor = spool.read(str(tmp_path), Cursor()).end
    assert spool.change_stamp(str(tmp_path), cursor) is None, "it changed just now"
    os.utime(tmp_path, (1, 1))
    before = spool.change_stamp(str(tmp_path), cursor)
    assert before == spool.change_stamp(str(tmp_path), cursor) is not None
    writer.append([b"[2]"])
    after = spool.change_stamp(str(tmp_path), cursor)
    assert after not in (before, None)
    writer.close()
    writer.append([b"[3]"])
    writer.close()
    assert spool.change_stamp(str(tmp_path), cursor) != after
    assert spool.change_stamp(str(tmp_path / "gone"), cursor) is None
