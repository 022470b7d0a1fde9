"""Pages: a line is valid only when it is complete, even if its writer is killed."""

from __future__ import annotations

import os
import random
import struct
import threading
from pathlib import Path

import pytest

from ckpt_observe.journal.page_file import PageFile
from ckpt_observe.journal.page_reader import Heartbeat, read_pages, read_running
from ckpt_observe.journal.pages import ENDED_FLAG, HEADER_SIZE, MARK_COUNT, PAGE_SIZE
from tests.journal.conftest import open_below


def test_append_mark_finish(file, fake_pool):
    """Another reader of the file sees lines and marks, and a finished page goes back to its pool."""
    page = file.pages[1]
    page.append(b"one\n")
    page.marks[1] = 5
    page.marks[MARK_COUNT] = 1 << 63
    file.write_heartbeat(77, 4096)
    heartbeat, [content] = read_pages(file.path)
    assert (heartbeat, content.lines, content.marks[0], content.marks[-1]) == (Heartbeat(77, 4096), b"one\n", 5, 1 << 63)
    page.finish(b"two\n")
    assert fake_pool.returned_pages == [page]
    assert page.read_lines() == read_pages(file.path)[1][0].lines == b"one\ntwo\n"
    assert struct.unpack_from("@Q", page.read_image())[0] == HEADER_SIZE + 8 | ENDED_FLAG


def test_cleared_page_is_empty(file):
    """A cleared page has no lines and no marks."""
    page = file.pages[0]
    page.append(b"x" * 100 + b"\n")
    page.marks[4] = 9
    page.clear()
    assert read_pages(file.path)[1] == []
    page.append(b"y\n")
    [content] = read_pages(file.path)[1]
    assert content.lines == b"y\n"
    assert set(content.marks) == {0}


def test_full_page_overflows(file, fake_pool):
    """A line that does not fit goes to the pool as a whole; one that just fits does not."""
    page = file.pages[0]
    page.append(b"x" * (PAGE_SIZE - HEADER_SIZE - 3) + b"\n")
    page.append(b"12\n")
    assert fake_pool.overflow_lines == [b"12\n"]
    page.append(b"1\n")
    assert fake_pool.overflow_lines == [b"12\n"]
    assert len(page.read_lines()) == PAGE_SIZE - HEADER_SIZE
    assert not page.has_room(b"1")


def test_torn_line_is_never_read(file, tmp_path):
    """If the writer is killed between copying a line and making it valid, the line does not exist for readers."""
    page = file.pages[0]
    page.append(b"whole\n")
    valid_bytes = struct.unpack_from("@Q", page.read_image())[0]
    page.append(b"torn\n")
    with open(file.path, "r+b") as raw:
        raw.seek(PAGE_SIZE)
        raw.write(struct.pack("@Q", valid_bytes))
    assert [content.lines for content in read_pages(file.path)[1]] == [b"whole\n"]


def test_threads_do_not_mix_lines(file, fake_pool):
    """Eight threads append to one page, which overflows to the pool: every line is there once and complete."""
    page, start = file.pages[0], threading.Barrier(8)

    def write(who):
        start.wait(10)
        for number in range(100):
            page.append(b"%d:%d\n" % (who, number))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    lines = page.read_lines().splitlines() + [each.strip() for each in fake_pool.overflow_lines]
    assert sorted(lines) == sorted(b"%d:%d" % (who, number) for who in range(8) for number in range(100))
    assert read_pages(file.path)[1][0].lines == page.read_lines()


def test_closed_page_ignores_writes(file, fake_pool):
    """After a fork, writes of the child do not reach the parent's page, and raise nothing."""
    page = file.pages[0]
    page.append(b"parent\n")
    before = Path(file.path).read_bytes()
    fake_pool.closed = True
    file.close()
    page.append(b"child\n")
    page.marks[2] = 1
    page.finish(b"child\n")
    assert fake_pool.returned_pages == []
    assert Path(file.path).read_bytes() == before


def test_file_closed_during_a_read(file):
    """A thread that reads a page while another closes the file gets its content. The last user closes the file."""
    page = file.pages[0]
    page.append(b"one\n")
    file.close()
    assert page.read_lines() == b"one\n"
    assert len(page.read_image()) == PAGE_SIZE
    page.clear()
    file.write_heartbeat(77, 4096)
    assert len(open_below(os.path.dirname(file.path))) == 1
    del page
    assert open_below(os.path.dirname(file.path)) == []


@pytest.mark.parametrize("write", ["heartbeat", "mark", "line"])
def test_file_closed_during_a_write(file, tmp_path, monkeypatch, write):
    """If another thread closes the file during a write, the write never reaches a file that the host program has opened since then."""
    real, host_files = os.pwrite, []

    def meanwhile_another_closes(descriptor, *args):
        if not host_files:
            file.close()
            host_files.extend((tmp_path / f"host{number}").open("wb") for number in range(3))
        return real(descriptor, *args)

    monkeypatch.setattr(os, "pwrite", meanwhile_another_closes)
    page = file.pages[0]
    {
        "heartbeat": lambda: file.write_heartbeat(77, 4096),
        "mark": lambda: page.marks.__setitem__(1, 5),
        "line": lambda: page.append(b"1\n"),
    }[write]()
    for host_file in host_files:
        host_file.close()
        assert Path(host_file.name).read_bytes() == b""


def test_few_file_descriptors(tmp_path, fake_pool, mapped):
    """A page file takes one descriptor of the host program, however many pages it has."""
    file = PageFile(str(tmp_path / "x.pages"), 128, fake_pool, mapped=mapped)
    assert len(open_below(tmp_path)) == 1
    file.close()
    assert open_below(tmp_path) == []


def test_blocks_are_allocated(file):
    """All blocks are allocated on creation, so a store on a full disk cannot raise SIGBUS."""
    status = os.stat(file.path)
    assert status.st_blocks * 512 >= status.st_size == 4 * PAGE_SIZE
    assert status.st_mode & 0o777 == 0o600


def test_existing_file_is_not_opened(tmp_path, fake_pool, mapped):
    """A file that exists already belongs to another process: it is not opened, followed or truncated."""
    path = tmp_path / "x.pages"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        PageFile(str(path), 1, fake_pool, mapped=mapped)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize(
    "size", [0, 1, 8, PAGE_SIZE - 1, PAGE_SIZE, 2 * PAGE_SIZE - 1, 5 * PAGE_SIZE + 17, 65 * PAGE_SIZE, 66 * PAGE_SIZE, 150 * PAGE_SIZE + 17]
)
def test_hostile_file(tmp_path, size):
    """Random bytes of any length are read without an error. All readers find the same running operations."""
    path = tmp_path / "hostile"
    chooser = random.Random(size)
    for _ in range(20):
        data = bytearray(chooser.randbytes(size))
        for start in range(0, max(0, size - 8), PAGE_SIZE):  # counts that look possible
            data[start : start + 8] = struct.pack("@Q", chooser.choice([0, 255, 256, 300, PAGE_SIZE, PAGE_SIZE + 1, 1 << 63 | 400]))
        path.write_bytes(data)
        _, pages = read_pages(str(path))
        assert all(len(each.marks) == MARK_COUNT and len(each.lines) <= PAGE_SIZE for each in pages)
        assert read_running(str(path)) == [each.lines for each in pages if not each.is_ended]
