"""Snapshots of a directory in one bare git repository per task, which may also hold the task's checkpoints.

Every file is stored byte for byte, including ignored files, executable bits and symbolic links. Unchanged files take no
space. Empty directories are not stored.
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
    """How one file changed between two snapshots."""

    path: str
    kind: str
    """`added`, `removed` or `changed`."""


class Workspace:
    """Saves and restores the directory that a task works in. The snapshots are in a repository below `root`."""

    def __init__(self, root: str | os.PathLike[str], task: str) -> None:
        if "://" in os.fspath(root):
            raise ConfigError(f"snapshots need the path of a directory, not a URL: {root}")
        self._repository = GitRepository(os.path.join(os.path.abspath(root), to_file_name(check_name(task, "task")) + ".git"))
        self._task = task

    def save(self, directory: str | os.PathLike[str], id: str) -> str:
        """Save a snapshot of the directory under an id, such as that of a checkpoint. Return the git commit. ConflictError if it exists."""
        check_name(id, "checkpoint id")
        return self._write(directory, id)

    def _write(self, directory: str | os.PathLike[str], id: str) -> str:
        self._refuse_own_repository(directory)
        _refuse_inner_repositories(os.fspath(directory))
        self._repository.create()
        with self._index(directory) as (environment, place):
            self._repository.run("add", "--all", "--force", ".", environment=environment, cwd=place)
            tree = self._repository.line("write-tree", environment=environment, cwd=place)
        return self._repository.commit(tree, _SNAPSHOTS + to_reference(id), f"workspace at {id}")

    def restore(self, directory: str | os.PathLike[str], id: str) -> None:
        """Restore the directory from a snapshot. Files that are not in the snapshot are removed, except `.git` of the directory.

        All checks run before anything is removed.
        """
        commit = self._commit(id)
        self._validate(directory, commit, id)
        self._check_out(directory, commit)

    def _validate(self, directory: str | os.PathLike[str], commit: str, id: str) -> None:
        """Check that the snapshot is intact and that nothing in the directory prevents its restore."""
        self._refuse_own_repository(directory)
        _refuse_inner_repositories(os.fspath(directory))
        self._refuse_damaged(commit, id)

    def _check_out(self, directory: str | os.PathLike[str], commit: str) -> None:
        with translate_os_errors(f"restoring {directory}"):
            os.makedirs(directory, exist_ok=True)
        with self._index(directory) as (environment, place):
            self._repository.run("read-tree", commit, environment=environment, cwd=place)
            extra_files = self._repository.run("ls-files", "--others", "-z", environment=environment, cwd=place)
            with translate_os_errors(f"restoring {directory}"):
                for name in filter(None, extra_files.split(b"\0")):
                    os.unlink(os.path.join(os.fsencode(place), name))
                _remove_empty(place)
            self._repository.run("checkout-index", "--all", "--force", environment=environment, cwd=place)

    def list(self) -> tuple[str, ...]:
        """Return the ids of the snapshots, in no particular order."""
        return tuple(from_reference(reference) for reference in self._references())

    def delete(self, id: str) -> None:
        """Delete a snapshot. `git gc` frees its space."""
        self._remove(id, self._commit(id))

    def _remove(self, id: str, commit: str) -> None:
        self._repository.run("update-ref", "-d", _SNAPSHOTS + to_reference(id), commit)

    def diff(self, old: str, new: str) -> Sequence[Change]:
        """Return the files that differ between two snapshots."""
        output = self._repository.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", self._commit(old), self._commit(new))
        fields = [os.fsdecode(field) for field in output.split(b"\0")[:-1]]
        return [Change(path, _KINDS[kind]) for kind, path in zip(fields[::2], fields[1::2], strict=True)]

    def _refuse_own_repository(self, directory: str | os.PathLike[str]) -> None:
        """Raise ConfigError if the snapshots are stored inside the directory.

        Each would contain the earlier ones, and restoring one would remove all later ones.
        """
        place = os.path.realpath(directory)
        if os.path.commonpath([place, os.path.realpath(self._repository.path)]) == place:
            raise ConfigError(f"the snapshots are stored inside {directory} itself; store them elsewhere")

    def _refuse_damaged(self, commit: str, id: str) -> None:
        """Raise IntegrityError if the snapshot is damaged. It is checked out in a temporary directory and compared.

        In the workspace, git would stop midway at an unreadable file. It does not notice swapped contents by itself.
        """
        with translate_os_errors(f"checking snapshot {id!r} of {self._task!r}"), tempfile.TemporaryDirectory() as scratch:
            with self._index(scratch) as (environment, place):
                self._repository.run("read-tree", commit, environment=environment, cwd=place)
                self._repository.run("checkout-index", "--all", environment=environment, cwd=place)
                altered = self._repository.run("ls-files", "--modified", "-z", environment=environment, cwd=place)
            if altered:
                names = ", ".join(os.fsdecode(altered).split("\0")[:-1])
                raise IntegrityError(f"the workspace snapshot {id!r} of {self._task!r} is damaged in these files: {names:.200}")

    def _commit(self, id: str) -> str:
        commit = self._references().get(to_reference(check_name(id, "checkpoint id")))
        if commit is None:
            raise CheckpointNotFoundError(f"{self._task!r} has no workspace snapshot {id!r}")
        return commit

    def _references(self) -> dict[str, str]:
        return self._repository.references(_SNAPSHOTS)

    @contextmanager
    def _index(self, directory: str | os.PathLike[str]) -> Iterator[tuple[dict[str, str], str]]:
        """Yield git's environment variables with a new index file, so that concurrent operations do not interfere.

        The second value is the absolute path of the directory.
        """
        place = os.path.abspath(directory)
        with translate_os_errors("making a temporary directory"):
            scratch = tempfile.mkdtemp()
        try:
            yield {"GIT_INDEX_FILE": os.path.join(scratch, "index"), "GIT_WORK_TREE": place}, place
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _refuse_inner_repositories(directory: str) -> None:
    """Raise ConfigError if there are nested repositories: git stores only their name, and cannot tell which of their files to remove."""
    for place, folders, files in os.walk(directory):
        if place != directory and (".git" in folders or ".git" in files):
            raise ConfigError(
                f"{place} is a git repository inside the workspace; its files would be neither saved nor restored. Move it elsewhere"
            )


def _remove_empty(directory: str) -> None:
    git_directory = os.path.join(directory, ".git", "")
    for place, _, _ in os.walk(directory, topdown=False):
        if place != directory and not os.path.join(place, "").startswith(git_directory) and not os.listdir(place):
            os.rmdir(place)
