"""Each operation of a dead process is recovered once: as it ended, or as interrupted in the phase in which the process died."""

from __future__ import annotations

import errno
import glob
import os
import random
import struct
from pathlib import Path

import msgspec
import pytest

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, pool, recovery, spool
from ckpt_observe.journal.directory import About, read_about
from ckpt_observe.journal.pages import PAGE_SIZE
from ckpt_observe.journal.spool import join_lines
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.semconv.values import PHASES
from ckpt_observe.support.process_memory import peak_memory
from tests.journal.conftest import NOW, SPAN, TRACE, begin, copied_then_delivered, end, open_below, phase_word


def recover(directory):
    """Recover a journal. Return the spans of its operations, all spans, and the number of interrupted operations."""
    claim = claims.claim_dead(directory)
    count = recovery.recover(claim)
    spans = [span for payload in spool.read_all(directory) for span in assemble(payload, claim.about.resource)]
    claim.release()
    return [span for span in spans if names.OPERATION in span.attributes], spans, count


def message(span):
    return span.events[-1].attributes["exception.message"]


def running_operation(*steps, lines=()):
    """Return the work of a process that begins an operation, writes marks and lines, and dies."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        for index, word in steps:
            page.marks[index] = word
        for each in lines:
            page.append(each)

    return work


def test_memory_of_the_process(dead_journal):
    """An interrupted operation has the peak memory of its process at its last sign of life; its phases and tasks have none."""

    def work(journal):
        running_operation((2, phase_word("serialize", 1)))(journal)
        journal.take().append(encode_line((events.BEGIN, SPAN[::-1], NOW, events.TASK, "agent", TRACE, "", {}, None)))
        journal.pool.write_heartbeat(NOW)

    [span], spans, count = recover(dead_journal(work))
    assert count == 2
    assert 1 << 20 < span.attributes[names.MEMORY_PEAK] <= peak_memory() + (64 << 20)
    assert [each.name for each in spans if names.MEMORY_PEAK in each.attributes] == ["checkpoint.save"]


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        ((2, phase_word("serialize", 1)), [encode_line((events.EVENT, SPAN, NOW + 5_000_000, "event", {}))]),
        ((2, phase_word("write", 5_000_000)), []),
    ],
    ids=["line", "mark"],
)
def test_process_that_died_before_its_first_heartbeat(dead_journal, step, lines):
    """It lived at least until the last line or mark of any operation: its task ends with what it contains, and not when it began."""

    def work(journal):
        journal.take().append(encode_line((events.BEGIN, SPAN[::-1], NOW, events.TASK, "agent", TRACE, "", {}, None)))
        running_operation(step, lines=lines)(journal)

    [save], spans, _ = recover(dead_journal(work))
    [task] = [span for span in spans if span.name == "task agent"]
    assert task.end_unix_nano == save.end_unix_nano > NOW + 5_000_000


@pytest.mark.parametrize("word", [0, 1 << 50, 2**64 - 1])
def test_memory_that_is_not_known(dead_journal, word):
    """Without a number, or with one that no machine has, the operation has no memory."""

    def work(journal):
        running_operation()(journal)
        journal.pool._files[0].write_heartbeat(NOW, word)

    [span], _, _ = recover(dead_journal(work))
    assert names.MEMORY_PEAK not in span.attributes


@pytest.mark.parametrize("phase", PHASES)
def test_interrupted_in_each_phase(dead_journal, phase):
    """The phase without an end is the one in which the process died. Earlier phases are ok."""
    directory = dead_journal(running_operation((2, phase_word("serialize", 1)), (3, 2 << 12 | 1), (4, phase_word(phase, 3))))
    [span], spans, count = recover(directory)
    assert count == 1
    assert (span.span_id, span.attributes[names.OUTCOME], span.status) == (SPAN, "interrupted", "error")
    assert span.attributes[names.ERROR_PHASE] == phase
    assert span.attributes[names.ERROR_CODE] == "interrupted.process_died"
    assert f"died (killed or crashed) during {phase}" in message(span)
    assert [each.attributes[names.OUTCOME] for each in spans[:2]] == ["ok", "interrupted"]
    assert spans[0].end_unix_nano - spans[0].start_unix_nano == 1
    assert all(NOW <= each.start_unix_nano <= each.end_unix_nano <= span.end_unix_nano for each in spans)


@pytest.mark.parametrize(
    ("steps", "progress"),
    [((), "before its first phase"), (((2, phase_word("write", 1)), (3, 2 << 12 | 1)), "after write")],
)
def test_interrupted_between_phases(dead_journal, steps, progress):
    """If no phase was running, none is named in the failure, and the message tells how far the operation got."""
    [span], _, count = recover(dead_journal(running_operation(*steps)))
    assert (count, span.attributes.get(names.ERROR_PHASE)) == (1, None)
    assert progress in message(span)


@pytest.mark.parametrize(
    ("operation", "shared", "steps", "phase", "progress"),
    [
        ("save", {names.FORMAT: "json"}, (), "serialize", "before serialize"),
        ("save", {}, (), "write", "before write"),
        ("prune", {}, (), "remove", "before remove"),
        ("load", {}, ((2, phase_word("read", 1)), (3, 2 << 12 | 1)), "read", "after read"),
        ("copy", {}, (), None, "before its first phase"),
    ],
)
def test_interrupted_between_phases_of_the_core(dead_journal, operation, shared, steps, phase, progress):
    """The phases of the core have no gaps: a moment between two belongs to the first. The message tells that this one was not running."""
    line = encode_line((events.BEGIN, SPAN, NOW, events.OPERATION, operation, "ab" * 16, "", {}, {names.SYSTEM: "reference", **shared}))

    def work(journal):
        page = journal.take()
        page.append(line)
        for index, word in steps:
            page.marks[index] = word

    [span], _, _ = recover(dead_journal(work))
    assert span.attributes.get(names.ERROR_PHASE) == phase
    assert progress in message(span)


@pytest.mark.parametrize(
    ("phases", "impact"),
    [
        ([("serialize", True), ("write", False)], "may be incomplete"),
        ([("serialize", True), ("write", True)], "may be incomplete"),
        ([("write", True), ("validate", False)], "may be incomplete"),
        ([("write", True), ("validate", True)], "this checkpoint was saved"),
        ([("validate", True), ("retain", False)], "this checkpoint was saved"),
    ],
)
def test_save_that_dies_after_it_is_durable(dead_journal, phases, impact):
    """A save that dies while old checkpoints are removed is durable, and its impact says so; one that dies earlier is not to be trusted."""
    marks = []
    for number, (phase, has_ended) in enumerate(phases, 1):
        marks += [(2 * number, phase_word(phase, number)), *([(2 * number + 1, (number + 1) << 12 | 1)] if has_ended else [])]
    [span], _, _ = recover(dead_journal(running_operation(*marks)))
    assert span.attributes[names.OUTCOME] == "interrupted"
    assert impact in span.attributes[names.ERROR_IMPACT]


@pytest.mark.parametrize(
    ("operation", "impact"), [("load", "nothing was returned"), ("list", "nothing was returned"), ("prune", "may not be removed")]
)
def test_impact_fits_the_operation(dead_journal, operation, impact):
    """A load that was interrupted has written nothing, so its impact is not that of a save."""
    line = encode_line((events.BEGIN, SPAN, NOW, events.OPERATION, operation, "ab" * 16, "", {}, None))
    [span], _, _ = recover(dead_journal(lambda journal: journal.take().append(line)))
    assert impact in span.attributes[names.ERROR_IMPACT]


def test_interrupted_task(dead_journal):
    """A task has operations and no phases, so its message does not say how far it got; its checkpoints are untouched."""
    line = encode_line((events.BEGIN, SPAN, NOW, events.TASK, "train", "ab" * 16, "", {}, None))
    _, [span], _ = recover(dead_journal(lambda journal: journal.take().append(line)))
    assert message(span).endswith("died (killed or crashed) while the task ran")
    assert "saved checkpoints are untouched" in span.attributes[names.ERROR_IMPACT]


def test_nested_phases(dead_journal):
    """The failure names the innermost running phase; its parent is interrupted too."""
    [span], spans, _ = recover(dead_journal(running_operation((2, phase_word("write", 1)), (4, phase_word("compress", 2, parent=1)))))
    assert span.attributes[names.ERROR_PHASE] == "compress"
    write, compress = spans[:2]
    assert compress.parent_span_id == write.span_id
    assert write.attributes[names.OUTCOME] == "interrupted"


def test_phases_in_lines(dead_journal):
    """Phases that are recorded as lines: one without `done` line was running, one with it keeps its attributes."""
    done = encode_line((events.DONE, SPAN, NOW + 3, ("shard 0", 15, 0, NOW + 1, NOW + 3, {names.PHASE_BYTES_OUT: 9})))
    running = [encode_line((events.PHASE, SPAN, NOW + 1 + number, 15 + number, 0, f"shard {number}")) for number in range(2)]
    [span], spans, _ = recover(dead_journal(running_operation(lines=[running[0], done, running[1]])))
    assert span.attributes[names.ERROR_PHASE] == "shard 1"
    assert spans[0].attributes[names.PHASE_BYTES_OUT] == 9


def test_finished_but_not_collected(dead_journal):
    """An operation that had ended when its process died keeps its outcome, even if another line was written after the `end`."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        page.append(end(**{names.SIZE_STORED: 5}))
        page.append(encode_line((events.EVENT, SPAN, NOW + 99, "late", {})))

    [span], _, count = recover(dead_journal(work))
    assert count == 0
    assert (span.attributes[names.OUTCOME], span.attributes[names.SIZE_STORED], span.end_unix_nano) == ("ok", 5, NOW + 10)


def test_collected_but_not_cleared(dead_journal):
    """If the process is killed between writing to the spool and clearing the page, the operation is reported once."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        page.append(end())
        journal.spool.append([join_lines(page.read_lines())])

    spans, _, count = recover(dead_journal(work))
    assert (len(spans), count) == (1, 0)


def test_lines_in_overflow_pages(dead_journal):
    """The lines of an operation that took several pages are joined."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        for number in range(12):
            page.append(encode_line((events.EVENT, SPAN, NOW + number, f"event {number}", {"text": "x" * 900})))

    [span], _, _ = recover(dead_journal(work))
    assert [event.name for event in span.events[:-1]] == [f"event {number}" for number in range(12)]


@pytest.mark.parametrize("phase", ["write", None])
def test_more_phases_than_fit(dead_journal, monkeypatch, phase):
    """After lines were dropped, a phase whose `done` line may be among them is not named in the failure; one with a mark is."""
    monkeypatch.setattr(pool, "MAX_OVERFLOW_PAGES", 1)

    def work(journal):
        page = journal.take()
        page.append(begin())
        if phase:
            page.marks[2] = phase_word(phase)
        for number in range(15, 100):
            page.append(encode_line((events.PHASE, SPAN, NOW + number, number, 0, f"shard {number}")))
            page.append(encode_line((events.DONE, SPAN, NOW + number, (f"shard {number}", number, 0, NOW + number, NOW + number, None))))
        assert journal.pool.counts["cut"]

    [span], _, _ = recover(dead_journal(work))
    assert span.attributes.get(names.ERROR_PHASE) == phase


def test_repeated_recovery(dead_journal):
    """Repeating a recovery, also one that was cut short before it removed the pages, reports nothing twice."""
    directory = dead_journal(running_operation())
    claim = claims.claim_dead(directory)
    pages = {path: Path(path).read_bytes() for path in glob.glob(claim.about.pages + "-*")}
    assert recovery.recover(claim) == 1
    assert recovery.recover(claim) == 0
    for path, data in pages.items():  # as if we had died before removing them
        Path(path).write_bytes(data)
    assert recovery.recover(claim) == 0
    claim.release()
    assert len(list(spool.read_all(directory))) == 1


def test_recovery_killed_after_removing_pages(dead_journal, monkeypatch):
    """If recovery dies after removing the pages, the next one does not use the copy, which is older than what was delivered since."""
    directory = dead_journal(copied_then_delivered)
    claim, unlink = claims.claim_dead(directory), os.unlink

    def killed_after_the_pages(path):
        unlink(path)
        if str(path).endswith("-00.pages"):
            raise SystemExit

    monkeypatch.setattr(os, "unlink", killed_after_the_pages)
    with pytest.raises(SystemExit):
        recovery.recover(claim)
    monkeypatch.undo()
    assert recovery.recover(claim) == 0
    claim.release()


def test_recovery_on_a_full_disk(dead_journal, monkeypatch, tmp_path):
    """Recovery that fails on a full disk leaves no open descriptors, and succeeds when there is room."""
    directory = dead_journal(running_operation())
    claim = claims.claim_dead(directory)
    before = open_below(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, b""))
    for _ in range(3):
        with pytest.raises(OSError):
            recovery.recover(claim)
    assert open_below(tmp_path) == before
    monkeypatch.undo()
    assert recovery.recover(claim) == 1
    claim.release()


def operations_beyond_shared_memory(*, is_copied):
    """Return the work of a process that dies during five operations, of which shared memory has room for two."""

    def work(journal):
        make, pool.FIRST_PAGES = pool.PageFile, 2
        other_pages = [journal.take() for _ in range(len(journal.pool._free) - 1)]

        def full(path, *args, **options):
            if path.startswith(journal.about.pages):
                raise OSError(errno.ENOSPC, "full")
            return make(path, *args, **options)

        pool.PageFile = full
        for number in range(5):
            page = journal.take()
            page.append(begin(f"{number:016x}"))
            page.marks[2] = phase_word("write")
            if is_copied and number == 3:
                journal.sync()
        assert other_pages
        assert journal.pool.counts["unprotected"] == 0

    return work


def test_full_shared_memory(dead_journal):
    """When shared memory is full, further operations are protected by pages in the state directory."""
    directory = dead_journal(operations_beyond_shared_memory(is_copied=False))
    spans, _, count = recover(directory)
    assert (len(spans), count) == (5, 5)
    assert list(Path(directory).parents[1].glob("pages/*")) == []


def test_full_shared_memory_that_is_emptied(dead_journal, tmp_path):
    """If shared memory is gone, its operations are taken from the copy and all others from the state directory, each once."""
    directory = dead_journal(operations_beyond_shared_memory(is_copied=True))
    for path in (tmp_path / "pages").iterdir():
        path.unlink()
    spans, _, count = recover(directory)
    assert (sorted(span.span_id for span in spans), count) == ([f"{number:016x}" for number in range(5)], 5)
    assert {span.attributes.get(names.ERROR_PHASE) for span in spans} == {"write"}


@pytest.mark.parametrize("length", [1, 30, 60, 100])
@pytest.mark.parametrize("is_recovered", [True, False])
def test_killed_while_it_wrote_a_record(dead_journal, length, is_recovered):
    """Half a record at the end of the spool is removed if its operation is recovered from its page; else it counts as damaged."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        page.finish(end())
        line = b"00000000 " + join_lines(begin() if is_recovered else begin("00000000000000ff"))
        Path(spool.segment_path(journal.directory, 1)).write_bytes(line[:length])

    directory = dead_journal(work)
    spans, _, _ = recover(directory)
    assert [span.span_id for span in spans] == [SPAN]
    corrupt = spool.read(directory, spool.Cursor()).corrupt
    assert corrupt == (not is_recovered and length >= 60)


def test_journal_of_a_live_owner(journal):
    """A journal whose owner is alive cannot be claimed as dead."""
    assert claims.claim_dead(journal.directory) is None


def test_one_process_claims_a_journal(dead_journal):
    """Of eight processes that claim a dead journal at the same time, one gets it and reports its operation."""
    directory = dead_journal(running_operation())
    go_reader, go = os.pipe()
    result_reader, result = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            try:
                os.close(go)
                os.read(go_reader, 1)  # all begin when the parent closes the pipe
                claim = claims.claim_dead(directory)
                os.write(result, b"%d" % recovery.recover(claim) if claim else b"-")
                os.read(go_reader, 1)
                if claim:
                    claim.release()
            finally:
                os._exit(0)
        children.append(child)
    os.close(go_reader)
    os.close(go)
    for child in children:
        os.waitpid(child, 0)
    os.close(result)
    results = b""
    while data := os.read(result_reader, 100):
        results += data
    os.close(result_reader)
    assert len(results) == 8
    assert results.count(b"1") == 1
    assert len(list(spool.read_all(directory))) == 1


@pytest.mark.parametrize("about", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1}', b'{"version": "x"}', b"\xff\xfe"])
def test_damaged_or_newer_journal(dead_journal, about):
    """A journal that is damaged or was written by a newer version is not changed, and the error names it and says what to do."""
    directory = dead_journal(running_operation())
    path = Path(directory, "about.json")
    path.write_bytes(about)
    before = sorted(os.listdir(directory))
    with pytest.raises(JournalError, match=r"upgrade|records are kept") as caught:
        claims.claim_dead(directory)
    assert directory in str(caught.value)
    assert (sorted(os.listdir(directory)), path.read_bytes()) == (before, about)


def change_boot_id(directory):
    path = Path(directory, "about.json")
    about = msgspec.json.decode(path.read_bytes(), type=About)
    path.write_bytes(msgspec.structs.replace(about, boot="another").encode())


def test_another_boot(dead_journal):
    """After a reboot, operations are recovered from the copy on disk, and the page files are ignored."""

    def work(journal):
        page = journal.take()
        page.append(begin())
        page.marks[2] = phase_word("write")
        journal.sync()
        page.append(begin("00000000000000ff"))  # only in memory: gone with the machine

    directory = dead_journal(work)
    change_boot_id(directory)
    spans, _, count = recover(directory)
    assert [(span.span_id, span.attributes[names.ERROR_PHASE]) for span in spans] == [(SPAN, "write")]
    assert count == 1
    assert "open.pages" not in os.listdir(directory)


def test_another_boot_without_copy(dead_journal):
    """After a reboot without a copy on disk, nothing is reported and nothing is raised."""
    directory = dead_journal(running_operation())
    change_boot_id(directory)
    assert recover(directory) == ([], [], 0)


def hostile_lines(chooser):
    """Yield lines that are almost valid."""
    good = [
        [events.BEGIN, SPAN, NOW, "operation", "save", "0" * 31 + "1", "", {}, None],
        [events.PHASE, SPAN, NOW, 15, 0, "write"],
        [events.DONE, SPAN, NOW, ["write", 15, 0, NOW, NOW, None]],
        [events.LINK, SPAN, NOW, "a", "b", {}],
        [events.EVENT, SPAN, NOW, "e", {}],
        [events.END, SPAN, NOW, {}, [["write", 1, 0, NOW, NOW, {}]], 0],
    ]
    odd = [None, [], {}, -1, 1 << 63, 1 << 70, "x", "ffffffffffffffff", 1.5, [[]], {"a": []}, True]
    for _ in range(chooser.randrange(1, 12)):
        row = list(chooser.choice(good))
        for _ in range(chooser.randrange(3)):
            row[chooser.randrange(len(row))] = chooser.choice(odd)
        if chooser.random() < 0.2:
            row = row[: chooser.randrange(len(row))]
        yield msgspec.json.encode(row if not any(each == 1 << 70 for each in row) else str(row)) + b"\n"


@pytest.mark.parametrize("seed", range(60))
def test_hostile_pages(dead_journal, seed):
    """Pages with random bytes or almost valid lines never raise, and the resulting spans can be encoded."""
    chooser = random.Random(seed)
    directory = dead_journal(lambda journal: None)
    [path] = glob.glob(read_about(directory).pages + "-*")
    data = bytearray(PAGE_SIZE)
    for _ in range(4):
        lines = b"".join(hostile_lines(chooser)) if chooser.random() < 0.8 else chooser.randbytes(2000)
        marks = chooser.randbytes(248) if chooser.random() < 0.5 else bytes(248)
        data += (struct.pack("@Q", min(PAGE_SIZE, 256 + len(lines))) + marks + lines)[:PAGE_SIZE].ljust(PAGE_SIZE, b"\0")
    Path(path).write_bytes(data)
    spans, everything, count = recover(directory)
    assert count <= len(spans) <= 4
    for span in everything:
        assert msgspec.json.decode(msgspec.json.encode(span))
