"""Whose turn it is to speak for all processes of a state directory: one of them, until it gives it back or dies."""

from __future__ import annotations

from pathlib import Path

from ckpt_observe.support.locks import FileLock


class Turn:
    """Asked for without waiting, and kept once it is ours."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = str(directory / f"metrics-{name}.lock")
        self._lock: FileLock | None = None

    def mine(self) -> bool:
        """Whether it is ours, or has become ours now. OSError: the directory cannot be used."""
        if self._lock is None:
            self._lock = FileLock.try_acquire(self._path)
        return self._lock is not None

    def give_back(self) -> None:
        """For whoever asks next. Also in a forked child, whose copy would outlive the parent's."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
