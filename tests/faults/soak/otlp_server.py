"""A loopback OTLP server in a process of its own. The rig makes it fail in many ways, and reads what it has received."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ckpt_observe.semconv import attributes as names
from tests.faults.soak.canaries import Canaries

MODES = ("ok", "refused", "500", "503", "429", "400", "reset", "black hole", "slow", "400 for some", "500 for some")
TIMEOUT = 0.5
"""Seconds after which the host program gives up a request (`OTEL_EXPORTER_OTLP_TIMEOUT`)."""
POISON = "own.poison"
"""An attribute of the operations that the server fails on in the modes `... for some`."""
POLL = 0.01
_REQUESTED, _CURRENT, _FAULTS, _LEAKS = range(4)
_RESET = struct.pack("ii", 1, 0)


class ReceivedSpan(msgspec.Struct, frozen=True):
    """The span of an operation, as far as the rig compares it."""

    trace_id: str
    span_id: str
    end: int
    attributes: dict[str, str]


class OtlpServer:
    """Started by the constructor and killed by `close`. `mode` is one of MODES, and in force when the assignment returns."""

    def __init__(self, directory: Path, canaries: Canaries, seed: str) -> None:
        self._path = directory / "received.jsonl"
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._words = memoryview(self._shared).cast("Q")
        self._reservation = _bind(0)  # as long as it does not listen, connections are refused
        self.port: int = self._reservation.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._pid = os.fork()
        if not self._pid:
            with suppress(BaseException):
                _Server(self.port, self._words, self._path, canaries, random.Random(seed)).run()
            os._exit(1)
        self.mode = "ok"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def mode(self) -> str:
        return MODES[self._words[_CURRENT] - 1]

    @mode.setter
    def mode(self, mode: str) -> None:
        self._words[_REQUESTED] = MODES.index(mode) + 1
        while self._words[_CURRENT] != self._words[_REQUESTED]:
            assert os.waitpid(self._pid, os.WNOHANG) == (0, 0), "the server has died"
            time.sleep(POLL)

    @property
    def faults(self) -> int:
        """How many requests the server did not answer with 200 in time, or not at all."""
        return self._words[_FAULTS]

    @property
    def leaks(self) -> int:
        """How many parts of secrets were in requests."""
        return self._words[_LEAKS]

    def received(self) -> dict[str, list[ReceivedSpan]]:
        """Return the spans of operations by the id of the operation. Copies with the same content count once: most backends drop them."""
        spans: dict[str, list[ReceivedSpan]] = {}
        for line in dict.fromkeys(self._path.read_bytes().splitlines() if self._path.exists() else ()):
            span = msgspec.json.decode(line, type=ReceivedSpan)
            spans.setdefault(span.attributes[names.ID], []).append(span)
        return spans

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._reservation.close()


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class Answer(NamedTuple):
    """What the server does with a request. `status` is None if it does not answer at all."""

    status: int | None = 200
    stores: bool = True
    delay: float = 0.0
    resets: bool = False


class _Server:
    def __init__(self, port: int, words: memoryview, path: Path, canaries: Canaries, rng: random.Random) -> None:
        self._port, self._words, self._canaries, self._rng = port, words, canaries, rng
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()

    def run(self) -> None:
        listener: socket.socket | None = None
        while True:
            requested = self._words[_REQUESTED]
            is_open = bool(requested) and MODES[requested - 1] != "refused"
            if is_open and listener is None:
                listener = _bind(self._port)
                listener.listen(64)
            elif not is_open and listener is not None:
                listener.close()
                listener = None
            self._words[_CURRENT] = requested
            if listener is None:
                time.sleep(POLL)
            elif select.select([listener], [], [], POLL)[0]:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _mode(self) -> str:
        return MODES[self._words[_CURRENT] - 1]

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            for body in _requests(stream):
                leaks = self._canaries.leaks(body)
                mode = self._mode()
                if mode == "refused":
                    return
                answer = self._choose(mode, body)
                if answer.stores:
                    self._store(body)
                with self._lock:
                    self._words[_LEAKS] += leaks
                    self._words[_FAULTS] += answer != Answer()
                if not self._send(connection, mode, answer):
                    return

    def _choose(self, mode: str, body: bytes) -> Answer:
        is_poisoned = POISON.encode() in body
        match mode:
            case "500" | "503" | "429" | "400":
                return Answer(int(mode), stores=False)
            case "400 for some" | "500 for some" if is_poisoned:
                return Answer(int(mode[:3]), stores=False)
            case "reset":
                return Answer(None, stores=self._rng.random() < 0.5, resets=True)  # stored, but the answer is lost: it is sent again
            case "black hole":
                return Answer(None, stores=self._rng.random() < 0.5)
            case "slow":
                return Answer(delay=self._rng.choice((0.3, 0.6, 1.4)) * TIMEOUT)
            case _:
                return Answer()

    def _send(self, connection: socket.socket, mode: str, answer: Answer) -> bool:
        """Send an answer. Return whether the connection can be used again."""
        if answer.resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return False
        if answer.status is None:
            while self._mode() == mode:
                time.sleep(POLL)
            return False
        wait = "retry-after: 1\r\n" if answer.status == 429 else ""
        text = f"HTTP/1.1 {answer.status} x\r\ncontent-length: 0\r\n{wait}\r\n".encode()
        for start in range(0, len(text), 8) if answer.delay else (0,):
            time.sleep(answer.delay * 8 / len(text))
            connection.sendall(text[start : start + 8] if answer.delay else text)
        return True

    def _store(self, body: bytes) -> None:
        lines = [msgspec.json.encode(span) + b"\n" for span in _operations(body)]
        os.write(self._file, b"".join(lines))


def _requests(stream: BinaryIO) -> Iterator[bytes]:
    while stream.readline():
        size = 0
        while (header := stream.readline().strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                size = int(header.partition(b":")[2])
        body = stream.read(size)
        if len(body) < size:
            return
        yield body


def _operations(body: bytes) -> Iterator[ReceivedSpan]:
    compared_names = {names.ID, names.OUTCOME, names.ERROR_PHASE}
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {pair.key: pair.value.string_value for pair in span.attributes}
                if names.OPERATION in attributes:
                    compared = {name: value for name, value in attributes.items() if name in compared_names}
                    yield ReceivedSpan(span.trace_id.hex(), span.span_id.hex(), span.end_time_unix_nano, compared)
