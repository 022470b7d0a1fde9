"""Checkpoints in git: `git:///path`, one bare repository for each task, one commit for each checkpoint.

Whatever reads git reads them: `git --git-dir /path/<task>.git show refs/checkpoints/<id>:checkpoint | head -1`. Objects and
references are synced before `put` returns. Safe between threads and processes. Costs a handful of processes for each
operation: meant for checkpoints that belong to a workspace (see `core.workspace`), not for thousands a minute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import unquote

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.names import from_file_name, to_file_name
from ckpt_observe.core.stores.base import Promise, Store, newest_first
from ckpt_observe.core.stores.gitrepo import NO_COMMIT, Repository, from_reference, to_reference
from ckpt_observe.core.stores.locate import url_of
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError, ConfigError, ConflictError, IntegrityError
from ckpt_observe.support.errnos import translate_os_errors

_CHECKPOINTS = "refs/checkpoints/"
_QUARANTINED = "refs/quarantine/"


class GitStore(Store):
    """A directory of bare repositories."""

    kind = "git"
    promise = Promise(durable="machine", shared="processes")

    def __init__(self, url: str) -> None:
        _, scheme_ends, place = url.partition("://")
        if scheme_ends and not place:
            raise ConfigError(f"a git store is git:///path or a plain path, not {url!r}")
        self._root = os.path.abspath(unquote(place) if scheme_ends else url)
        super().__init__(url_of("git", self._root))

    def repository(self, task: str) -> Repository:
        return Repository(os.path.join(self._root, to_file_name(task) + ".git"))

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        repository = self.repository(info.task)
        repository.make()
        if to_reference(info.id) in repository.references(_CHECKPOINTS):
            raise ConflictError(f"{info.task!r} has a checkpoint {info.id!r} already")
        content = repository.line("hash-object", "-w", "--stdin", data=bytes(blob))
        tree = repository.line("mktree", data=f"100644 blob {content}\tcheckpoint\n".encode())
        repository.commit(tree, _CHECKPOINTS + to_reference(info.id), f"checkpoint {info.id} of {info.task}")

    def get(self, task: str, id: str) -> Buffer:
        repository = self.repository(task)
        return repository.run("cat-file", "blob", f"{self._commit(repository, task, id)}:checkpoint")

    def delete(self, task: str, id: str) -> None:
        repository = self.repository(task)
        repository.remove(_CHECKPOINTS + to_reference(id), self._commit(repository, task, id))

    def quarantine(self, task: str, id: str) -> None:
        repository = self.repository(task)
        commit = self._commit(repository, task, id)
        if commit != NO_COMMIT:
            repository.run("update-ref", f"{_QUARANTINED}{to_reference(id)}/{commit}", commit)
        repository.remove(_CHECKPOINTS + to_reference(id), commit)

    def list(self, task: str) -> CheckpointInfos:
        return sorted(self._headers(self.repository(task)), key=newest_first, reverse=True)

    def ids(self, task: str) -> tuple[str, ...]:
        """Only the header knows an id that is too long for a reference: of a damaged one, what stands for it."""
        names = {reference: from_reference(reference) for reference in self.repository(task).references(_CHECKPOINTS)}
        listed = {to_reference(info.id): info.id for info in self.list(task)} if any("~" in name for name in names.values()) else {}
        return tuple(listed.get(reference) or name for reference, name in names.items())

    def tasks(self) -> tuple[str, ...]:
        with translate_os_errors(f"listing tasks in {self._root}"):
            try:
                names = [name.removesuffix(".git") for name in os.listdir(self._root) if name.endswith(".git")]
            except FileNotFoundError:
                return ()
        return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _task_of(self, name: str) -> str | None:
        repository = Repository(os.path.join(self._root, name + ".git"))
        task = from_file_name(name)
        if task is not None:
            return task if repository.references(_CHECKPOINTS) else None
        return next((info.task for info in self._headers(repository)), None)

    def _headers(self, repository: Repository) -> Iterator[CheckpointInfo]:
        """Those that are not damaged and lie where they belong."""
        for reference, commit in repository.references(_CHECKPOINTS).items():
            try:
                info = container.read_header(repository.run("cat-file", "blob", f"{commit}:checkpoint"))
            except (IntegrityError, CompatibilityError):
                continue
            if to_reference(info.id) == reference and self.repository(info.task).path == repository.path:
                yield info

    def _commit(self, repository: Repository, task: str, id: str) -> str:
        commit = repository.references(_CHECKPOINTS).get(to_reference(id))
        if commit is None:
            raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self._root}")
        return commit
