"""Checkpoints in object stores: `s3://bucket/prefix`, `gs://`, `az://`. Extra `objects` (obstore).

Each checkpoint is one object, written in one request with "create only": a reader sees all of it or nothing, and only one writer gets
an id. When `put` returns, the service has acknowledged it. Credentials and endpoint come from the environment variables of the
service's own tools (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`...). Listing reads the start of each object that is not cached.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.format.names import from_file_name, id_from_file_name, id_to_file_name, to_file_name
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.header_cache import HeaderCache
from ckpt_observe.core.stores.store import Capabilities, Store, copy_metadata, creation_order, not_found
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, CompatibilityError, IntegrityError, MissingExtraError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import from_url
except ImportError as error:
    raise MissingExtraError("an object store", "objects") from error

from ckpt_observe.core.stores.object_errors import is_beyond_end, is_missing_bucket, translate_object_errors  # needs obstore, too

_SUFFIX = ".ckpt"
_QUARANTINE_SUFFIX = ".bad"
_HEADER_GUESS = 16 * 1024
_REQUEST_SECONDS = 30
"""Timeout of a request. Large uploads get more: the time for _MIN_BYTES_PER_SECOND in addition."""
_MIN_BYTES_PER_SECOND = 256 * 1024
_PART = 8 * 1024 * 1024
"""Larger objects are read in parts of this size, one request each."""
_MAX_SIZES = {"s3": 5 << 30, "gs": 5 << 40, "az": 5000 << 20}
"""Bytes that each service accepts in one request, which is the limit for a checkpoint."""
_CLOCK_TOLERANCE = dt.timedelta(seconds=1)
"""Services report times of writing in whole seconds. In doubt, a damaged object counts as newer."""
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_UNREADABLE = (IntegrityError, CompatibilityError)


class ObjectStore(Store):
    """Objects under a prefix of a bucket."""

    capabilities = Capabilities(durability="machine", writers="hosts", reads_ranges=True)

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        super().__init__(f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}")
        self.kind = scheme
        self.capabilities = self.capabilities._replace(max_size=_MAX_SIZES.get(scheme))
        self._url = url
        self._bucket = self._open_bucket(_REQUEST_SECONDS)
        self._headers = HeaderCache()

    def _open_bucket(self, seconds: float) -> Any:
        retries = {"max_retries": 0, "retry_timeout": dt.timedelta(seconds=seconds)}  # for retries use RetryingStore
        allow_http = os.environ.get(_ALLOW_HTTP.get(self.kind, ""), "").lower() == "true"  # with client options, obstore ignores it
        options = {"timeout": f"{round(seconds * 1000)}ms", "allow_http": allow_http}
        with translate_object_errors("opening", self.location):
            return from_url(self._url, client_options=options, retry_config=retries)

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        size, max_size = len(blob), self.capabilities.max_size
        if max_size is not None and size > max_size:
            text = f"the checkpoint has {size} bytes, but {self.location} accepts at most {max_size}: save the state in parts"
            raise CapacityError(text, code="storage.too_large")
        with translate_object_errors(f"saving checkpoint {info.id!r} of {info.task!r}", self.location):
            bucket = self._bucket if size <= _PART else self._open_bucket(_REQUEST_SECONDS + size / _MIN_BYTES_PER_SECOND)
            obstore.put(bucket, _path(info.task, info.id), bytes(blob), mode="create")

    def get(self, task: str, id: str) -> Buffer:
        with self._translate_errors(task, id):
            path = _path(task, id)
            data = bytearray(part := self._read_range(path, 0, _PART))
            while len(part) == _PART:
                data += (part := self._read_range(path, len(data), _PART))
            return data

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        with self._translate_errors(task, id):
            return self._read_range(_path(task, id), start, size)

    def info(self, task: str, id: str) -> CheckpointInfo:
        with self._translate_errors(task, id):
            return self._read_header(_path(task, id))

    def size(self, task: str, id: str) -> int:
        with self._translate_errors(task, id):
            return int(obstore.head(self._bucket, _path(task, id))["size"])

    def delete(self, task: str, id: str) -> None:
        with self._translate_errors(task, id):
            obstore.head(self._bucket, _path(task, id))  # because deleting a missing object succeeds
            obstore.delete(self._bucket, _path(task, id))

    def quarantine(self, task: str, id: str) -> None:
        with self._translate_errors(task, id):
            target = f"{_path(task, id).removesuffix(_SUFFIX)}.{secrets.token_hex(4)}{_QUARANTINE_SUFFIX}"
            obstore.rename(self._bucket, _path(task, id), target)

    def list(self, task: str) -> CheckpointInfos:
        return sorted(map(copy_metadata, self._readable_headers(self._entries(to_file_name(task)))), key=creation_order, reverse=True)

    def ids(self, task: str) -> tuple[str, ...]:
        """An id that is too long for a name is only in the header; if that is damaged, the name is returned instead."""
        names = [_file_name(entry) for entry in self._entries(to_file_name(task))]
        listed = {id_to_file_name(info.id): info.id for info in self.list(task)} if any("~" in name for name in names) else {}
        return tuple(listed.get(name) or id_from_file_name(name) for name in names)

    def newest(self, task: str) -> str | None:
        """For an object with an unreadable header, its time of writing counts."""
        times: list[tuple[dt.datetime, str]] = []
        for entry in self._entries(to_file_name(task)):
            try:
                info = self._cached_header(entry)
                times.append((info.created, info.id))
            except CheckpointNotFoundError:
                continue  # deleted since it was listed
            except _UNREADABLE:
                times.append((entry["last_modified"] + _CLOCK_TOLERANCE, id_from_file_name(_file_name(entry))))
        return max(times)[1] if times else None

    def tasks(self) -> tuple[str, ...]:
        with translate_object_errors("listing tasks", self.location):
            names = {_split(entry)[0] for batch in obstore.list(self._bucket) for entry in batch if _is_checkpoint(entry)}
        return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _task_of(self, name: str) -> str | None:
        task = from_file_name(name)
        if task is not None:
            return task
        return next((info.task for info in self._readable_headers(self._entries(name))), None)

    def _entries(self, folder: str) -> Any:
        with translate_object_errors("listing checkpoints", self.location):
            entries = [entry for batch in obstore.list(self._bucket, prefix=folder) for entry in batch if _is_checkpoint(entry)]
        self._headers.remove_deleted(folder, [_split(entry)[1] for entry in entries])
        return entries

    def _readable_headers(self, entries: Any) -> Iterator[CheckpointInfo]:
        """Yield the headers that are intact and still exist."""
        for entry in entries:
            try:
                yield self._cached_header(entry)
            except (*_UNREADABLE, CheckpointNotFoundError):
                continue

    def _cached_header(self, entry: Any) -> CheckpointInfo:
        path, fingerprint = entry["path"], entry.get("e_tag") or str(entry["last_modified"])
        with translate_object_errors("reading a header", self.location):
            try:
                return self._headers.get(*_split(entry), fingerprint, lambda: self._read_header(path))
            except FileNotFoundError as error:
                raise CheckpointNotFoundError(f"{path} was deleted meanwhile") from error

    def _read_header(self, path: str) -> CheckpointInfo:
        start = b""
        size = _HEADER_GUESS
        while b"\n" not in start and len(start) < container.MAX_HEADER:
            more = self._read_range(path, len(start), size)
            start += more
            if len(more) < size:
                break
            size = len(start)
        return container.read_header(start)

    def _read_range(self, path: str, start: int, size: int) -> bytes:
        """Return the range, or less if the object ends earlier."""
        try:
            return bytes(obstore.get_range(self._bucket, path, start=start, length=size)) if size else b""
        except exceptions.GenericError as error:
            if is_beyond_end(error):
                return b""
            raise

    @contextmanager
    def _translate_errors(self, task: str, id: str) -> Iterator[None]:
        with translate_object_errors(f"checkpoint {id!r} of {task!r}", self.location):
            try:
                yield
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                raise not_found(task, id, self.location) from error


def _path(task: str, id: str) -> str:
    return f"{to_file_name(task)}/{id_to_file_name(id)}{_SUFFIX}"


def _split(entry: Any) -> tuple[str, str]:
    """Return folder and name of an object."""
    folder, _, name = entry["path"].rpartition("/")
    return folder, name


def _file_name(entry: Any) -> str:
    return _split(entry)[1].removesuffix(_SUFFIX)


def _is_checkpoint(entry: Any) -> bool:
    """Return whether the object is where checkpoints are: in a folder, but not in a nested one."""
    return bool(entry["path"].endswith(_SUFFIX) and entry["path"].count("/") == 1)
