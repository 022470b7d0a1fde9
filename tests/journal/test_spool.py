"""The spool: a reader gets complete records or none, whatever happened to the file."""

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
    spool = Spool(str(tmp_path))
    yield spool
    spool.close()


def everything(directory):
    return list(read_all(str(directory)))


def test_round_trip(tmp_path, writer):
    """Records are read in the order in which they were appended, from any cursor."""
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
    """A full segment is closed, and reading continues in the next."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    for each in RECORDS:
        writer.append([each])
    assert len(spool.segments(str(tmp_path))) == 3
    assert everything(tmp_path) == RECORDS
    assert spool.size(str(tmp_path)) == sum(len(each) + 10 for each in RECORDS)


def test_full_segments_are_synced(tmp_path, writer, monkeypatch):
    """`sync` also syncs the segments that were completed since the last call."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    synced, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), fsync(fd)))
    for each in RECORDS:
        writer.append([each])
    writer.sync()
    assert {os.stat(spool.segment_path(str(tmp_path), number)).st_ino for number in spool.segments(str(tmp_path))} <= synced
    writer.close()
    assert open_below(tmp_path) == []


def test_append_in_a_signal_handler(tmp_path, writer, monkeypatch):
    """A signal handler cannot append during an append: it might close the segment that is being written. Its records wait."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 30)
    write = os.write

    def write_with_handler(fd, data):
        monkeypatch.undo()
        with pytest.raises(OSError, match="in progress"):
            writer.append(RECORDS[1:])
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_with_handler)
    writer.append(RECORDS[:1])
    writer.append(RECORDS[1:])
    assert everything(tmp_path) == RECORDS


def test_new_writer_starts_a_new_segment(tmp_path, writer):
    """A new writer does not append to a segment that a dead process may have left with half a line."""
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
    """If any one byte changes, no false record is read, at most two are lost, and the damage is counted."""
    path, data = original
    for position in range(len(data)):
        for flip in (0x01, 0x80, data[position] ^ 0x0A):  # the last makes a newline
            if not flip:
                continue
            damaged = bytearray(data)
            damaged[position] ^= flip
            with open(path, "wb") as file:
                file.write(damaged)
            records = read(str(tmp_path), Cursor())
            assert set(records.payloads) <= set(RECORDS)
            assert len(records.payloads) >= 3
            assert records.corrupt or (position >= data.rindex(b"\n", 0, -1)), position


def test_every_truncation(tmp_path, original):
    """Of a truncated segment, exactly the complete records are read."""
    path, data = original
    for length in range(len(data)):
        with open(path, "wb") as file:
            file.write(data[:length])
        assert read(str(tmp_path), Cursor()).payloads == RECORDS[: data[:length].count(b"\n")]


def test_segment_removed_since_it_was_listed(tmp_path, writer, monkeypatch):
    """If the delivery removes a segment while another process reads, the reader continues with the next segment."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 1)
    writer.append(RECORDS[:1])
    before = spool.segments(str(tmp_path))
    writer.append(RECORDS[1:2])
    os.unlink(spool.segment_path(str(tmp_path), before[0]))
    listings = iter([before])
    listed = spool.segments
    monkeypatch.setattr(spool, "segments", lambda directory: next(listings, None) or listed(directory))
    assert read(str(tmp_path), Cursor()).payloads == RECORDS[1:2]


def test_segment_removed_while_writing(tmp_path, writer):
    """A writer does not append to a segment that was removed: the next record can be read."""
    writer.append(RECORDS[:1])
    os.unlink(spool.segment_path(str(tmp_path), 1))
    writer.append(RECORDS[1:2])
    assert everything(tmp_path) == RECORDS[1:2]


def test_directory_removed(tmp_path):
    """If the directory is gone, every append raises OSError."""
    directory = tmp_path / "gone"
    directory.mkdir()
    writer = Spool(str(directory))
    directory.rmdir()
    for _ in range(2):
        with pytest.raises(OSError):
            writer.append(RECORDS)


def test_short_write(tmp_path, writer, monkeypatch):
    """If the disk fills up during an append, OSError is raised, and records written before and after are complete."""
    writer.append(RECORDS[:1])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2 + 3]))
    with pytest.raises(OSError):
        writer.append(RECORDS[1:3])
    monkeypatch.undo()
    writer.append(RECORDS[1:3])
    records = everything(tmp_path)
    assert set(records) == set(RECORDS[:3])
    assert records[-2:] == RECORDS[1:3]


def test_file_size_limit(tmp_path):
    """The same with a limit that the kernel enforces (RLIMIT_FSIZE)."""
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
    """A record that is longer than the read limit is read completely."""
    large = b'["' + b"x" * 3000 + b'"]'
    writer.append([large, RECORDS[0]])
    first = read(str(tmp_path), Cursor(), limit=100)
    assert first.payloads == [large]
    assert read(str(tmp_path), first.end, limit=100).payloads == [RECORDS[0]]


def test_change_stamp(tmp_path):
    """The stamp changes with every record behind the cursor, in the same segment or a new one. It is None right after a change."""
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


def test_half_a_line_is_removed(tmp_path, writer, monkeypatch):
    """If the disk fills up in the middle of a line, that line is removed and written again; those before it are not written twice."""
    writer.append(RECORDS[:1])
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:-5]))
        with pytest.raises(OSError, match="full"):
            writer.append(RECORDS[1:3])
    writer.append(RECORDS[1:3])
    payloads, corrupt, cursor = [], 0, Cursor()
    while (records := read(str(tmp_path), cursor)).end != cursor:
        payloads, corrupt, cursor = payloads + records.payloads, corrupt + records.corrupt, records.end
    assert (payloads, corrupt) == (RECORDS[:3], 0)


def test_records_after_a_truncation_are_read(tmp_path, writer):
    """If somebody truncates a segment, later records go to a new one: a cursor behind the end would skip them."""
    writer.append(RECORDS[:3])
    cursor = read(str(tmp_path), Cursor()).end
    os.truncate(tmp_path / "spool-00000001.jsonl", 0)
    writer.append(RECORDS[3:4])
    assert read(str(tmp_path), cursor).payloads == RECORDS[3:4]


def test_missing_records(tmp_path, writer):
    """The owner knows which records somebody truncated or removed; the rest of a cut line is removed."""
    sizes = [len(record) + 10 for record in RECORDS]
    writer.append(RECORDS[:4])
    assert writer.take_missing() == []
    path = tmp_path / "spool-00000001.jsonl"
    os.truncate(path, sum(sizes[:2]) + 3)
    assert writer.take_missing() == [(1, sum(sizes[:2])), (1, sum(sizes[:3]))]
    assert path.stat().st_size == sum(sizes[:2])
    assert writer.take_missing() == []
    writer.append(RECORDS[4:5])
    path.unlink()
    assert writer.take_missing() == [(1, 0), (1, sizes[0])]
    assert list(spool.read_all(str(tmp_path))) == RECORDS[4:5]


def test_records_that_are_appended_again_one_by_one(tmp_path, writer, monkeypatch):
    """Records of an append that failed in the middle may come again in any order, and each is written once."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) * 2 // 3]))
        with pytest.raises(OSError, match="full"):
            writer.append(RECORDS[:4])
    for record in reversed(RECORDS[:5]):
        writer.append([record])
    assert sorted(spool.read_all(str(tmp_path))) == RECORDS[:5]
