"""Checkpoints as files: `<root>/<task>/<id>.ckpt`, one file each, readable with `head -1`.

When `put` returns, file and directories are synced. A name appears only with its whole content: the bytes go to a
file without a name, are synced, and are then linked under their name, which fails if it is taken.
Safe between threads and processes. Files are 0600 and directories 0700: a state is nobody else's business.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.names import from_file_name, id_to_file_name, known_as, to_file_name
from ckpt_observe.core.stores import headers
from ckpt_observe.core.stores.base import Promise, Store, newest_first, own
from ckpt_observe.core.stores.headers import READ, FileHeaders
from ckpt_observe.core.stores.locate import url_of
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConfigError, ConflictError
from ckpt_observe.support import new_files
from ckpt_observe.support.errnos import to_checkpoint_error, translate_os_errors
from ckpt_observe.support.files import make_directory, move, read_range, read_whole

QUARANTINED = ".bad"
_COARSE = 0.02
"""Seconds that the time of a file may be behind the clock. In doubt what is damaged counts as the newer."""
_DIRECTORY = READ | os.O_DIRECTORY
_MOST_TASKS = 1024
"""A server may see tasks without end; one forgotten here only is settled once more."""


class FileStore(Store):
    """A directory of checkpoints."""

    kind = "file"
    promise = Promise(durable="machine", shared="processes", ranged=True)

    suffix = ".ckpt"

    def __init__(self, url: str) -> None:
        self._root = _path(url)
        self._headers = FileHeaders(self._header)
        self._settled: set[str] = set()
        super().__init__(url_of("file", self._root))

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        self._write(info.task, [(info, blob)])

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        for task in dict.fromkeys(info.task for info, _ in batch):
            self._write(task, [(info, blob) for info, blob in batch if info.task == task])

    def get(self, task: str, id: str) -> Buffer:
        try:  # without the helpers below: every save and load comes through here
            file = os.open(f"{self._root}/{to_file_name(task)}/{id_to_file_name(id)}{self.suffix}", READ)
            try:
                return read_whole(file)
            finally:
                os.close(file)
        except OSError as error:
            raise self._error(error, task, id, "reading") from error

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        with self._opened(task, id) as file:
            return read_range(file, start, size)

    def info(self, task: str, id: str) -> CheckpointInfo:
        with self._found(task, id, "reading"), self._directory(task) as directory:
            return self._header(directory, id_to_file_name(id) + self.suffix)

    def size(self, task: str, id: str) -> int:
        with self._opened(task, id) as file:
            return os.fstat(file).st_size

    def delete(self, task: str, id: str) -> None:
        with self._found(task, id, "deleting"), self._directory(task) as directory:
            os.unlink(id_to_file_name(id) + self.suffix, dir_fd=directory)
            os.fsync(directory)

    def discard(self, task: str, id: str) -> None:
        with self._found(task, id, "deleting"):
            os.unlink(f"{self._root}/{to_file_name(task)}/{id_to_file_name(id)}{self.suffix}")

    def quarantine(self, task: str, id: str) -> None:
        with self._found(task, id, "moving"), self._directory(task) as directory:
            name = id_to_file_name(id)
            aside = f"{name}.{secrets.token_hex(4)}{QUARANTINED}"  # the id is free again, and may have to move again
            move(name + self.suffix, aside, directory=directory)
            os.fsync(directory)

    def list(self, task: str) -> CheckpointInfos:
        with self._entries(task) as (directory, entries):
            found = [own(info) for entry in entries if (info := self._headers.peek(directory, entry)) is not None]
        found.sort(key=newest_first, reverse=True)
        return found

    def ids(self, task: str) -> tuple[str, ...]:
        """Only the header knows an id that is too long for a file name: of a damaged one, what stands for it."""
        with self._entries(task) as (directory, entries):
            names = [(known_as(entry.name.removesuffix(self.suffix)), entry) for entry in entries]
            return tuple(getattr(self._headers.peek(directory, entry), "id", id) if "~" in entry.name else id for id, entry in names)

    def newest(self, task: str) -> str | None:
        """A file whose header does not read counts from when it was last written."""
        times: list[tuple[float, str]] = []
        with self._entries(task) as (directory, entries):
            for entry in entries:
                info = self._headers.peek(directory, entry)
                if info is not None:
                    times.append((info.created.timestamp(), info.id))
                elif os.path.lexists(entry.path):
                    times.append((entry.stat(follow_symlinks=False).st_mtime + _COARSE, known_as(entry.name.removesuffix(self.suffix))))
        return max(times)[1] if times else None

    def tasks(self) -> tuple[str, ...]:
        with translate_os_errors(f"listing tasks in {self._root}"):
            try:
                names = [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
            return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _encoded(self, info: CheckpointInfo, blob: Blob) -> Blob:
        """The bytes of the file; for formats that differ from the checkpoint's own."""
        return blob

    def _header(self, directory: int, name: str) -> CheckpointInfo:
        return headers.read(directory, name)

    def _task_of(self, name: str) -> str | None:
        """The task a directory belongs to, if it holds any checkpoint."""
        with self._entries(name, encoded=True) as (directory, entries):
            if entries and (task := from_file_name(name)) is not None:
                return task
            return next((info.task for entry in entries if (info := self._headers.peek(directory, entry)) is not None), None)

    def _write(self, task: str, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        with translate_os_errors(f"saving a checkpoint of {task!r} in {self._root}"):
            files = [(id_to_file_name(info.id) + self.suffix, self._encoded(info, blob)) for info, blob in batch]
            if task not in self._settled:
                self._settle(task)
            try:
                with self._directory(task, make=True) as directory:
                    new_files.create_files(directory, files)
            except FileExistsError as error:
                taken = next((info.id for info, _ in batch if id_to_file_name(info.id) + self.suffix == error.filename2), batch[0][0].id)
                raise ConflictError(f"{task!r} has a checkpoint of that id already: {taken!r}") from error

    def _settle(self, task: str) -> None:
        """Before this process first writes there: who made the directory may have been killed before it was durable, or tidy."""
        make_directory(os.path.join(self._root, to_file_name(task)))  # which syncs the parent of one that is there, too
        with self._directory(task) as directory:
            new_files.remove_abandoned(directory)
        if len(self._settled) >= _MOST_TASKS:
            self._settled.clear()
        self._settled.add(task)

    @contextmanager
    def _opened(self, task: str, id: str) -> Iterator[int]:
        with self._found(task, id, "reading"), self._directory(task) as directory:
            file = os.open(id_to_file_name(id) + self.suffix, READ, dir_fd=directory)
            try:
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _found(self, task: str, id: str, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(error, task, id, doing) from error

    def _error(self, error: OSError, task: str, id: str, doing: str) -> CheckpointError:
        if isinstance(error, FileNotFoundError):
            return CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self._root}")
        return to_checkpoint_error(error, f"{doing} checkpoint {id!r} of {task!r} in {self._root}")

    @contextmanager
    def _entries(self, task: str, *, encoded: bool = False) -> Iterator[tuple[int, Sequence[os.DirEntry[str]]]]:
        """The checkpoint files of a task, with the directory open; none where there is no directory."""
        with translate_os_errors(f"listing checkpoints of {task!r} in {self._root}"):
            path = os.path.join(self._root, task if encoded else to_file_name(task))
            try:
                named = [entry for entry in os.scandir(path) if entry.name.endswith(self.suffix)]
                entries = [entry for entry in named if entry.is_file(follow_symlinks=False)]  # no link to the latest, pipe or directory
                directory = os.open(path, _DIRECTORY)
            except FileNotFoundError:
                yield -1, ()
                return
            self._headers.forget_others(path, [entry.name for entry in entries])
            try:
                yield directory, entries
            finally:
                os.close(directory)

    @contextmanager
    def _directory(self, task: str, *, make: bool = False) -> Iterator[int]:
        path = os.path.join(self._root, to_file_name(task))
        try:
            directory = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
            make_directory(path)
            directory = os.open(path, _DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)


def _path(url: str) -> str:
    if "://" not in url:
        return os.path.abspath(url)
    host, slash, path = url.partition("://")[2].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"files are kept at a URL with three slashes, such as file:///path, or at a plain path, not at {url!r}")
    if "?" in path or "#" in path:
        raise ConfigError(f"in the path of a file URL ? is written %3F and # is %23, or give a plain path: {url!r}")
    return os.path.abspath(unquote(f"/{path}"))
