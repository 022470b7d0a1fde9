"""An exporter, a store and an instrumentor in a package of their own. `pyproject.toml` announces them as entry points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckpt_observe.config import Settings
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.targets import Family, Target
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span, to_json_line


class JsonFileExporter(Exporter):
    """Writes each span to a file named after its id, so that a span that is sent again is stored once."""

    name = "jsonfile"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def send(self, spans: Sequence[Span]) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for span in spans:
                with (self._directory / f"{span.trace_id}-{span.span_id}.json").open("w", encoding="utf-8") as file:
                    file.write(to_json_line(span))
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:  # the spans are kept and sent again
            raise ExporterRetryError(f"cannot write to {self._directory}: {error.strerror}; free space or fix its permissions") from error

    def close(self) -> None: ...


def build_exporter(settings: Settings) -> Exporter:
    return JsonFileExporter(settings.dir / "spans")


class DictionaryStore(MemoryStore):
    """Keeps checkpoints in memory, under a URL scheme of its own."""

    kind = "dictionary"

    def __init__(self, url: str) -> None:
        super().__init__(url.replace("dictionary://", "memory://"))
        self.location = url


def describe_shelf(shelf: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    return {names.SYSTEM: "shelve", names.SAVER: type(shelf).__name__, names.ID: arguments.get("key")}


class ShelveInstrumentor(Instrumentor):
    """Observes shelves of the standard library: values that are stored, read and removed."""

    name = library = "shelve"

    def targets(self) -> Sequence[Target]:
        return ()

    def families(self) -> Sequence[Family]:
        operations = {"__setitem__": "save", "__getitem__": "load", "__delitem__": "delete"}
        methods = {method: LibraryCall("shelve", operation, describe_shelf) for method, operation in operations.items()}
        return (Family("shelve", "Shelf", methods, include_base=True),)
