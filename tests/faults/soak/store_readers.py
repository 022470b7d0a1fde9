"""Readers of checkpoints, and of the stores of traces and metrics. `prepare_*` functions are as in `journal_readers`."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.core.ciphers import AeadCipher
from ckpt_observe.core.format.digests import encode_base64
from ckpt_observe.core.json_lines import read_json_lines
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.delivery.save_index import FILENAME as SAVE_INDEX
from ckpt_observe.delivery.save_index import SaveIndex, Source
from ckpt_observe.errors import CheckpointError, CkptObserveError, ExporterError
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.exporters.metrics import MetricsExporter
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.faults.soak.journal_readers import JournalFiles, Read, write
from tests.faults.soak.mutations import mutate

STATE = {"step": 7, "text": "a text, " * 20, "list": [1, 2.5, None, True], "nested": {"a": [{"b": "c"}]}}
ENCODINGS = [(format, compression) for format in ("json", "msgpack", "pickle", "arrays") for compression in ("none", "gzip", "zstd", "lz4")]


# Checkpoints


def prepare_container(_root: Path) -> Read:
    """No damage yields another state than the one that was saved, in any format, compressed or encrypted."""
    ciphers = (None, AeadCipher(b"k" * 32))
    checkpointers = [
        Checkpointer(MemoryStore(), format=format, compression=compression, encryption=cipher)
        for format, compression in ENCODINGS
        for cipher in ciphers
    ]
    for checkpointer in checkpointers:
        checkpointer.save("t", STATE, id="c", step=7)
    intact = [checkpointer.store.get("t", "c") for checkpointer in checkpointers]

    def read(rng: random.Random) -> str:
        number = rng.randrange(len(checkpointers))
        checkpointer, data = checkpointers[number], mutate(intact[number], rng)
        info, _ = checkpointer.store._checkpoints["t"]["c"]
        checkpointer.store._checkpoints["t"]["c"] = info, data
        return _check_load(checkpointer)

    return read


def _check_load(checkpointer: Checkpointer) -> str:
    try:
        state = checkpointer.load("t", "c")
    except CheckpointError:
        return ""
    return "" if state == STATE else f"another state: {state!r}"


def prepare_forgery(_root: Path) -> Read:
    """A checkpoint with a correct seal and digest may contain anything. It is loaded or raises CheckpointError. Pickle is left out."""
    checkpointers = [Checkpointer(MemoryStore(), format=format, compression=codec) for format, codec in ENCODINGS if format != "pickle"]
    for checkpointer in checkpointers:
        checkpointer.save("t", STATE, id="c", step=7)
    parts = [bytes(checkpointer.store.get("t", "c")).split(b"\n", 1) for checkpointer in checkpointers]

    def read(rng: random.Random) -> str:
        number = rng.randrange(len(checkpointers))
        checkpointer, (line, payload) = checkpointers[number], parts[number]
        header = json.loads(line)
        del header["seal"]
        if rng.random() < 0.5:
            payload = mutate(payload, rng)
            header |= {"sizes": [header["sizes"][0], len(payload)], "digest": encode_base64(hashlib.sha256(payload).digest())}
        text = json.dumps(header, separators=(",", ":")).encode()[:-1]
        body = mutate(text, rng) if rng.random() < 0.5 else text
        seal = encode_base64(hashlib.blake2b(body, digest_size=8).digest()).encode()
        info, _ = checkpointer.store._checkpoints["t"]["c"]
        checkpointer.store._checkpoints["t"]["c"] = info, body + b',"seal":"' + seal + b'"}\n' + payload
        with suppress(CheckpointError):
            checkpointer.load("t", "c")
        with suppress(CheckpointError):
            dict(checkpointer.open("t", "c"))
        return ""

    return read


def _prepare_files(url: str, pattern: str) -> Callable[[Path], Read]:
    """A damaged file among the checkpoints of a task hides no other one, and yields no other state."""

    def prepare(root: Path) -> Read:
        checkpointer = Checkpointer(url.format(root / "store"))
        checkpointer.save("t", STATE, id="c", step=7)
        checkpointer.save("t", STATE, id="other", step=6)
        [path] = [path for path in (root / "store").rglob(pattern) if path.name.startswith("c.")]
        intact = path.read_bytes()

        def read(rng: random.Random) -> str:
            write(path, mutate(intact, rng))
            listed = {info.id for info in checkpointer.list("t")} & {info.id for info in checkpointer.find(Query())}
            verified = {finding.id for finding in checkpointer.verify("t") if finding.good}
            problem = _check_load(checkpointer)
            return problem or ("" if "other" in listed and "other" in verified else "an intact checkpoint is hidden")

        return read

    return prepare


prepare_file_store = _prepare_files("file://{}", "*.ckpt")
prepare_jsonl_store = _prepare_files("jsonl://{}", "*.jsonl")
prepare_gzip_store = _prepare_files("jsonl://{}?gzip", "*.jsonl.gz")


def prepare_json_lines(root: Path) -> Read:
    path, lines = root / "lines.jsonl", b"".join(json.dumps({**STATE, "step": step}).encode() + b"\n" for step in range(4))
    variants = (lines, gzip.compress(lines))

    def read(rng: random.Random) -> str:
        write(path, mutate(rng.choice(variants), rng))
        with suppress(CheckpointError):
            list(read_json_lines(path))
        return ""

    return read


def prepare_sqlite_store(root: Path) -> Read:
    path = root / "store.db"
    with Checkpointer(f"sqlite://{path}") as checkpointer:
        for step in range(8):
            checkpointer.save("t", STATE, id=f"c{step}" if step else "c", step=step)
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        _write_database(path, _damage_database(intact, rng))
        try:
            with Checkpointer(f"sqlite://{path}") as checkpointer:
                problem = _check_load(checkpointer)
                for call in (lambda: checkpointer.list("t"), checkpointer.verify, lambda: checkpointer.find(Query(limit=3))):
                    with suppress(CheckpointError):
                        call()
                return problem
        except CheckpointError:
            return ""

    return read


# Stores of traces and metrics


def _damage_database(data: bytes, rng: random.Random) -> bytes:
    """Damage the database, most often in its first page or in the used part of another."""
    if rng.random() < 0.2:
        return mutate(data, rng)
    start = rng.choice((0, rng.randrange(len(data) // 4096) * 4096))
    return data[:start] + mutate(data[start : start + 4096], rng)[:4096].ljust(4096, b"\0") + data[start + 4096 :]


def _write_database(path: Path, data: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    write(path, data)


def prepare_trace_store(root: Path) -> Read:
    records = JournalFiles(root).records
    spans = [span for record in records for span in assemble(record, {"service.name": "test"})]
    state = root / "traces"
    with closing(LocalExporter(state)) as exporter:
        exporter.send(spans)
    path = state / FILENAME
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        _write_database(path, _damage_database(intact, rng))
        with suppress(CkptObserveError), TraceReader(path) as reader:
            reader.last_step("t")
            for trace in reader.newest():
                reader.spans(trace.trace_id)
        with closing(LocalExporter(state)) as exporter, suppress(ExporterError):
            exporter.send(spans[:6])
        for copy in state.glob("*.damaged*"):
            copy.unlink()
        return ""

    return read


def prepare_metric_store(root: Path) -> Read:
    records = JournalFiles(root).records
    spans = [span for record in records for span in assemble(record, {"service.name": "test"})]
    state = root / "metrics"
    with closing(MetricsExporter(state, lambda: gather(state, "1"))) as exporter:
        exporter.send(spans[:10])
    [path] = state.glob("*.db")
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        _write_database(path, _damage_database(intact, rng))
        with suppress(CkptObserveError, OSError, sqlite3.Error):  # what its callers expect
            gather(state, "1")
        with closing(MetricsExporter(state, lambda: gather(state, "1"))) as exporter, suppress(ExporterError):
            exporter.send(spans)
        for copy in state.glob("*.damaged*"):
            copy.unlink()
        return ""

    return read


def prepare_save_index(root: Path) -> Read:
    """Loads are linked to the save of their checkpoint, or to none."""
    state, key = root / "index", b"k" * 16
    state.mkdir()
    source = Source("a" * 32, "b" * 16, 1)
    with closing(SaveIndex(state)) as index:
        index.add(key, source)
    path = state / SAVE_INDEX
    intact = path.read_bytes()

    def read(rng: random.Random) -> str:
        _write_database(path, _damage_database(intact, rng))
        with closing(SaveIndex(state)) as index:
            index.find(key)
            index.add(b"other", source)
        return ""

    return read
