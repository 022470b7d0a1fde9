"""Readers of the files of a journal, and of the records in them.

Each `prepare_*` function creates intact files in a directory and returns `read(rng)`, which damages one file, reads it as our programs do,
and returns a description of what is wrong, or an empty string. An exception that it lets through is a defect, too.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import ckpt_observe
from ckpt_observe import __version__
from ckpt_observe.delivery import outbox
from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.delivery.send_marks import SENDING, SendMarks
from ckpt_observe.delivery.set_aside import SET_ASIDE, SetAside
from ckpt_observe.errors import JournalError
from ckpt_observe.exporters.laminar_shape import shape
from ckpt_observe.exporters.otlp_encoding import encode_requests
from ckpt_observe.journal import cursors, page_reader, recovery, spool
from ckpt_observe.journal.claims import Claim
from ckpt_observe.journal.directory import OPEN_PAGES, read_about, save_counts, take_counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.pages import PAGE_SIZE
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span, to_json_line
from tests.delivery.damage import DROPPED, KEPT_IDS, DamagedState, use_everything
from tests.faults.soak.mutations import mutate

Read = Callable[[random.Random], str]
SEGMENT = "spool-00000001.jsonl"
OPERATIONS = 4
"""Finished operations in the spool, and as many in pages, of which half are running."""


def write(path: Path | str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


class JournalFiles:
    """A journal whose intact files are kept in memory."""

    def __init__(self, root: Path) -> None:
        journal = Journal(root / "state", root / "pages", ["fake"], {"service.name": "test"})
        recorder.start(journal.take)
        for number in range(OPERATIONS):
            _record(f"spooled {number}", is_finished=True)
        journal.pool.collect()
        self._running = [_record(f"page {number}", is_finished=number % 2 == 0) for number in range(OPERATIONS)]
        recorder.stop()
        journal.sync()
        self.directory, self.about = Path(journal.directory), journal.about
        self.segment = self.directory / SEGMENT
        self.segment_bytes = self.segment.read_bytes()
        self.records = [line[9:] for line in self.segment_bytes.splitlines()]
        [page_file] = page_reader.page_files(journal.about.pages)
        self.pages, self.copy = Path(page_file), self.directory / OPEN_PAGES
        self.page_bytes, self.copy_bytes = _compact(self.pages.read_bytes()), self.copy.read_bytes()


def _record(key: str, *, is_finished: bool) -> object:
    scope = ckpt_observe.checkpoint("save", id=key, attributes={"own.text": 'text, with "quotes"', "own.number": 1.5})
    operation = scope.__enter__()
    operation.add_event("event", {"own.list": ["a", "b"]})
    operation.link("a" * 32, "b" * 16)
    with operation.phase("serialize"), operation.phase("own phase"):
        pass
    write_phase = operation.phase("write")
    write_phase.__enter__()
    if is_finished:
        write_phase.__exit__(None, None, None)
        scope.__exit__(None, None, None)
    return scope


# The spool


def prepare_spool(root: Path) -> Read:
    """Intact lines are read in order, all others are counted, and a line without its newline is left."""
    journal = JournalFiles(root)
    payloads = dict(zip(journal.segment_bytes.splitlines(), journal.records, strict=True))

    def read(rng: random.Random) -> str:
        data = mutate(journal.segment_bytes, rng)
        write(journal.segment, data)
        result, cursor, corrupt = [], spool.Cursor(), 0
        while (batch := spool.read(str(journal.directory), cursor, rng.choice((1, 100, 1 << 20)))).end != cursor:
            result += batch.payloads
            corrupt, cursor = corrupt + batch.corrupt, batch.end
        lines = [line for line in data[: data.rfind(b"\n") + 1].split(b"\n") if line]
        expected = [payloads[line] for line in lines if line in payloads]
        spool.is_boundary(str(journal.directory), spool.Cursor(rng.randrange(3), rng.randrange(len(data) + 9)))
        spool.size(str(journal.directory), cursor)
        return "" if (result, corrupt) == (expected, len(lines) - len(expected)) else f"{len(result)} records, {corrupt} corrupt"

    return read


def prepare_record(root: Path) -> Read:
    """A record with a correct checksum and any content becomes spans that can be encoded or are refused, or nothing."""
    records = JournalFiles(root).records
    annotator = Annotator(lambda _task: None, SaveIndex(None), lambda: None)

    def read(rng: random.Random) -> str:
        record = mutate(rng.choice(records), rng)
        recovery._decode_record(record)
        [annotated] = annotator.annotate([record])
        encode_spans(assemble(annotated, {"service.name": "test"}, genai_events=rng.random() < 0.5))
        return ""

    return read


def encode_spans(spans: Sequence[Span]) -> None:
    """Encode spans as the exporters do. These errors are refusals (`OtlpExporter.send`)."""
    for adapt in (lambda span: span, shape):
        with suppress(TypeError, ValueError, struct.error):
            list(encode_requests([adapt(span) for span in spans], __version__, 1 << 20))
    with suppress(TypeError, ValueError):
        "".join(map(to_json_line, spans))


# Pages


def prepare_pages(root: Path) -> Read:
    """Damaged pages of a live process are read, as `doctor` does."""
    journal = JournalFiles(root)

    def read(rng: random.Random) -> str:
        write(journal.pages, _damage_page(journal.page_bytes, rng)[0])
        heartbeat, pages = page_reader.read_pages(str(journal.pages))
        for lines in [*(page.lines for page in pages), *page_reader.read_running(str(journal.pages))]:
            page_reader.begin_line(page_reader.parse_lines(lines))
        return "" if min(heartbeat) >= 0 else "negative heartbeat"

    return read


def _damage_page(data: bytes, rng: random.Random) -> tuple[bytes, int]:
    """Damage one of the pages in use, or sometimes the file as a whole. Return its number, or -1 for the whole file."""
    if rng.random() < 0.05:
        return mutate(data[: rng.choice((len(data), 3 * PAGE_SIZE))], rng), -1
    number = rng.randrange(len(data) // PAGE_SIZE)
    start = number * PAGE_SIZE
    used = struct.unpack_from("@Q", data, start)[0] & 0xFFFF
    page = mutate(data[start : start + max(used, 8)], rng)[:PAGE_SIZE]
    return data[:start] + page.ljust(PAGE_SIZE, b"\0") + data[start + PAGE_SIZE :], number


def prepare_recovery(root: Path) -> Read:
    """A damaged page of a dead process costs no other page its operation; the same with the copy on disk after a power failure."""
    journal = JournalFiles(root)
    claim = Claim(str(journal.directory), journal.about, None, None)
    files = {journal.pages: journal.page_bytes, journal.copy: journal.copy_bytes}
    ids = {path: _ids_by_page(data) for path, data in files.items()}
    segment_names = {SEGMENT}

    def read(rng: random.Random) -> str:
        path = rng.choice((journal.pages, journal.copy))
        data, number = _damage_page(files[path], rng)
        for each in files:
            each.unlink(missing_ok=True)
        write(path, data)
        write(journal.segment, journal.segment_bytes)
        recovery.recover(claim)
        records = list(spool.read_all(str(journal.directory)))
        for name in set(os.listdir(journal.directory)) - segment_names:
            if name.startswith("spool-"):
                os.unlink(journal.directory / name)
        spans = [span for record in records for span in assemble(record, {})]
        encode_spans(spans[-12:])
        expected = {key for page, key in ids[path].items() if page != number and number >= 0}
        missing = expected - {span.attributes.get(names.ID) for span in spans if isinstance(span.attributes.get(names.ID), str)}
        return f"lost {sorted(missing)}" if missing else ""

    return read


def _compact(data: bytes) -> bytes:
    """Return the pages in use, and one free page."""
    used = [data[:PAGE_SIZE]]
    pages = [data[start : start + PAGE_SIZE] for start in range(PAGE_SIZE, len(data), PAGE_SIZE)]
    return b"".join([*used, *(page for page in pages if page[0]), bytes(PAGE_SIZE)])


def _ids_by_page(data: bytes) -> dict[int, str]:
    """Return the ids of the operations that are in exactly one page, by number of the page."""
    ids = {}
    for start in range(PAGE_SIZE, len(data), PAGE_SIZE):
        used = struct.unpack_from("@Q", data, start)[0] & 0xFFFF
        begin = page_reader.begin_line(page_reader.parse_lines(data[start + 256 : start + used]))
        if begin:
            ids[start // PAGE_SIZE] = begin[7][names.ID]
    return ids


# Small files


def prepare_about(root: Path) -> Read:
    journal = JournalFiles(root)
    path = journal.directory / "about.json"
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        write(path, mutate(intact, rng))
        with suppress(JournalError):
            read_about(str(journal.directory))
        return ""

    return read


def prepare_cursors(root: Path) -> Read:
    """Whatever the cursors are, whole records are read, and nothing but the records of the spool."""
    journal = JournalFiles(root)
    path, directory = journal.directory / cursors.FILE, str(journal.directory)
    offset = len(journal.segment_bytes.splitlines(keepends=True)[0])
    intact = b'{"fake":[1,%d],"other":[0,0]}' % offset
    allowed = {span.span_id for record in journal.records for span in assemble(record, {})}

    def read(rng: random.Random) -> str:
        write(path, mutate(intact, rng))
        outbox.backlog(directory, ["fake", "other"])
        spans, _ = Outbox(directory, {}, ["fake"]).next_batch("fake")
        (journal.directory / f"{cursors.FILE}.damaged").unlink(missing_ok=True)
        return "" if {span.span_id for span in spans} <= allowed else "half a record was read"

    return read


def prepare_counts(root: Path) -> Read:
    """Counters never decrease, and none is counted twice."""
    journal = JournalFiles(root)
    directory = str(journal.directory)
    save_counts(directory, DROPPED)
    take_counts(directory)
    taken_counts = (journal.directory / "counts-taken.json").read_bytes()
    save_counts(directory, {key: 2 * value for key, value in DROPPED.items()})
    intact = {"counts.json": (journal.directory / "counts.json").read_bytes(), "counts-taken.json": taken_counts}

    def read(rng: random.Random) -> str:
        damaged = rng.choice(list(intact))
        for name, data in intact.items():
            write(journal.directory / name, mutate(data, rng) if name == damaged else data)
        increases = take_counts(directory)
        again = take_counts(directory)
        return "" if all(value > 0 for value in increases.values()) and not again else f"{increases}, then {again}"

    return read


def prepare_set_aside(root: Path) -> Read:
    journal = JournalFiles(root)
    store = SetAside(str(journal.directory))
    for span in assemble(journal.records[0], {"service.name": "test"}):
        store.add("fake", span)
    path = journal.directory / SET_ASIDE
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        write(path, mutate(intact, rng))
        damaged = SetAside(str(journal.directory))
        count, due = damaged.count(), damaged.due("fake")
        encode_spans(due)
        return "" if count >= len(due) else f"{count} spans, but {len(due)} are due"

    return read


def prepare_send_marks(root: Path) -> Read:
    """A damaged mark says that nothing was sent, or names another position."""
    journal = JournalFiles(root)
    position = spool.Cursor(1, 100)
    SendMarks(str(journal.directory)).begin("fake", position)
    path = journal.directory / SENDING
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        write(path, mutate(intact, rng))
        time = SendMarks(str(journal.directory)).last_attempt("fake", position)
        return "" if time is None or time > 0 else f"sent at {time}"

    return read


# Everything together


def prepare_state_directory(root: Path) -> Read:
    """Also FIFOs, links, directories and huge files in place of files. The journal of another process is delivered."""
    (root / "damage").mkdir()
    damaged_state = DamagedState(root / "damage")

    def read(rng: random.Random) -> str:
        damaged_state.restore()
        description = damaged_state.damage(rng)
        missing = set(KEPT_IDS) - set(use_everything(damaged_state.state))
        return f"{description}: {sorted(missing)} not delivered" if missing else ""

    return read
