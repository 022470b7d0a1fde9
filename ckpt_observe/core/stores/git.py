"""Checkpoints in git: `git:///path`, one bare repository per task and one commit per checkpoint.

Any git tool reads them: `git --git-dir /path/<task>.git show refs/checkpoints/<id>:checkpoint | head -1`, with a `.` of the id written as
`%2E` and `_` as `_1`. Objects and references are synced before `put` returns. Safe between threads and processes. Each operation starts
several processes, so this store is meant for checkpoints that belong to a workspace (see `core.workspace`), not for thousands per minute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import unquote

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.format.names import from_file_name, to_file_name
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.git_repository import NO_COMMIT, GitRepository, from_reference, to_reference
from ckpt_observe.core.stores.store import Capabilities, Store, already_exists, creation_order, not_found
from ckpt_observe.core.stores.urls import path_to_url
from ckpt_observe.errors import CompatibilityError, ConfigError, IntegrityError
from ckpt_observe.support.errnos import translate_os_errors

_CHECKPOINTS = "refs/checkpoints/"
_QUARANTINE = "refs/quarantine/"


class GitStore(Store):
    """A directory of bare repositories."""

    kind = "git"
    capabilities = Capabilities(durability="machine", writers="processes")

    def __init__(self, url: str) -> None:
        _, separator, path = url.partition("://")
        if separator and not path:
            raise ConfigError(f"a git store needs a URL such as git:///path or a plain path, not {url!r}")
        self._root = os.path.abspath(unquote(path) if separator else url)
        super().__init__(path_to_url("git", self._root))

    def repository(self, task: str) -> GitRepository:
        """Return the repository of a task, which may not exist yet."""
        return GitRepository(os.path.join(self._root, to_file_name(task) + ".git"))

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        repository = self.repository(info.task)
        repository.create()
        if to_reference(info.id) in repository.references(_CHECKPOINTS):
            raise already_exists(info.task, info.id)
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
            repository.run("update-ref", f"{_QUARANTINE}{to_reference(id)}/{commit}", commit)
        repository.remove(_CHECKPOINTS + to_reference(id), commit)

    def list(self, task: str) -> CheckpointInfos:
        return sorted(self._headers(self.repository(task)), key=creation_order, reverse=True)

    def ids(self, task: str) -> tuple[str, ...]:
        """An id that is too long for a reference is only in the header; if that is damaged, the reference's name is returned instead."""
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
        """Return the task of a repository, or None if it has no checkpoint."""
        repository = GitRepository(os.path.join(self._root, name + ".git"))
        task = from_file_name(name)
        if task is not None:
            return task if repository.references(_CHECKPOINTS) else None
        return next((info.task for info in self._headers(repository)), None)

    def _headers(self, repository: GitRepository) -> Iterator[CheckpointInfo]:
        """Yield the headers that are intact and belong to their reference and repository."""
        for reference, commit in repository.references(_CHECKPOINTS).items():
            try:
                info = container.read_header(repository.start_of_blob(f"{commit}:checkpoint", container.MAX_HEADER))
            except (IntegrityError, CompatibilityError):
                continue
            if to_reference(info.id) == reference and self.repository(info.task).path == repository.path:
                yield info

    def _commit(self, repository: GitRepository, task: str, id: str) -> str:
        commit = repository.references(_CHECKPOINTS).get(to_reference(id))
        if commit is None:
            raise not_found(task, id, self._root)
        return commit
