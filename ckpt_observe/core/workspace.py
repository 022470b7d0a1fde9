"""Snapshots of a directory: one bare git repository for each task, which may be the one its checkpoints are in.

Every file is kept byte for byte, ignored ones too, with its executable bit and symbolic links; unchanged files cost nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ckpt_observe.core.format.names import check_name, to_file_name
from ckpt_observe.core.stores.git_repository import GitRepository, from_reference, to_reference
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError
from ckpt_observe.support.errnos import translate_os_errors

_SNAPSHOTS = "refs/workspaces/"
_KINDS = {"A": "added", "D": "removed", "M": "changed", "T": "changed"}


class Change(NamedTuple):
    """What became of one file."""

    path: str
    kind: str
    """`added`, `removed` or `changed`."""


class Workspace:
    """Snapshots of the directory that a task works in."""

    def __init__(self, root: str | os.PathLike[str], task: str) -> None:
        if "://" in os.fspath(root):
            raise ConfigError(f"snapshots are kept in a directory, which is given by its path, not by a URL: {root}")
        self._repository = GitRepository(os.path.join(os.path.abspath(root), to_file_name(check_name(task, "task")) + ".git"))
        self._task = task

    def save(self, directory: str | os.PathLike[str], id: str) -> str:
        """Keep the directory as it is under that id, such as that of a checkpoint; returns the git commit."""
        check_name(id, "checkpoint id")
        self._refuse_own_repository(directory)
        _refuse_inner_repositories(os.fspath(directory))
        self._repository.create()
        with self._index(directory) as (environment, place):
            self._repository.run("add", "--all", "--force", ".", environment=environment, cwd=place)
            tree = self._repository.line("write-tree", environment=environment, cwd=place)
        return self._repository.commit(tree, _SNAPSHOTS + to_reference(id), f"workspace at {id}")

    def restore(self, directory: str | os.PathLike[str], id: str) -> None:
        """Put the directory back to a snapshot: files that were not in it are removed, `.git` of its own is left alone.

        Whatever can be refused is refused before anything is removed.
        """
        commit = self._commit(id)
        self._refuse_own_repository(directory)
        _refuse_inner_repositories(os.fspath(directory))
        self._refuse_damaged(commit, id)
        with translate_os_errors(f"restoring {directory}"):
            os.makedirs(directory, exist_ok=True)
        with self._index(directory) as (environment, place):
            self._repository.run("read-tree", commit, environment=environment, cwd=place)
            extra = self._repository.run("ls-files", "--others", "-z", environment=environment, cwd=place)
            with translate_os_errors(f"restoring {directory}"):
                for name in filter(None, extra.split(b"\0")):
                    os.unlink(os.path.join(os.fsencode(place), name))
                _remove_empty(place)
            self._repository.run("checkout-index", "--all", "--force", environment=environment, cwd=place)

    def list(self) -> tuple[str, ...]:
        """Ids of the snapshots, in no order."""
        return tuple(from_reference(reference) for reference in self._repository.references(_SNAPSHOTS))

    def delete(self, id: str) -> None:
        """Forget a snapshot; git gives back its space when it is asked to, see `git gc`."""
        self._repository.run("update-ref", "-d", _SNAPSHOTS + to_reference(id), self._commit(id))

    def diff(self, old: str, new: str) -> Sequence[Change]:
        """Which files differ between two snapshots."""
        said = self._repository.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", self._commit(old), self._commit(new))
        fields = [os.fsdecode(field) for field in said.split(b"\0")[:-1]]
        return [Change(path, _KINDS[kind]) for kind, path in zip(fields[::2], fields[1::2], strict=True)]

    def _refuse_own_repository(self, directory: str | os.PathLike[str]) -> None:
        """A snapshot of itself would grow each time, and restoring one would remove all that were made since."""
        place = os.path.realpath(directory)
        if os.path.commonpath([place, os.path.realpath(self._repository.path)]) == place:
            raise ConfigError(f"the snapshots are kept inside of {directory}, which they are of: keep them elsewhere")

    def _refuse_damaged(self, commit: str, id: str) -> None:
        """Git stops at a file that it cannot read, and takes one whose content is another's: so all are first put and looked at aside."""
        with translate_os_errors(f"looking at snapshot {id!r} of {self._task!r}"), tempfile.TemporaryDirectory() as aside:
            with self._index(aside) as (environment, place):
                self._repository.run("read-tree", commit, environment=environment, cwd=place)
                self._repository.run("checkout-index", "--all", environment=environment, cwd=place)
                altered = self._repository.run("ls-files", "--modified", "-z", environment=environment, cwd=place)
            if altered:
                names = ", ".join(os.fsdecode(altered).split("\0")[:-1])
                raise IntegrityError(f"the workspace snapshot {id!r} of {self._task!r} is damaged: {names:.200}")

    def _commit(self, id: str) -> str:
        commit = self._repository.references(_SNAPSHOTS).get(to_reference(check_name(id, "checkpoint id")))
        if commit is None:
            raise CheckpointNotFoundError(f"{self._task!r} has no workspace snapshot {id!r}")
        return commit

    @contextmanager
    def _index(self, directory: str | os.PathLike[str]) -> Iterator[tuple[dict[str, str], str]]:
        """An index of its own for each operation, so that two do not meet in one."""
        place = os.path.abspath(directory)
        with translate_os_errors("making a temporary directory"):
            scratch = tempfile.mkdtemp()
        try:
            yield {"GIT_INDEX_FILE": os.path.join(scratch, "index"), "GIT_WORK_TREE": place}, place
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _refuse_inner_repositories(directory: str) -> None:
    """Git would keep only the name of a repository below, and none of its files; nor can it tell which of them to remove."""
    for place, folders, files in os.walk(directory):
        if place != directory and (".git" in folders or ".git" in files):
            raise ConfigError(f"{place} is a git repository inside of the workspace: its files would be neither kept nor removed")


def _remove_empty(directory: str) -> None:
    own = os.path.join(directory, ".git", "")
    for place, _, _ in os.walk(directory, topdown=False):
        if place != directory and not os.path.join(place, "").startswith(own) and not os.listdir(place):
            os.rmdir(place)
