"""What ended processes left, all together: a state directory that nobody delivers does not fill the disk.

A live process keeps its own journal within a limit. Those of ended ones are kept within another, together: beyond it the oldest go first,
and are counted. Reports of interrupted operations go last. Only journals are touched that we hold, or that nobody does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ckpt_observe.delivery import outbox
from ckpt_observe.delivery.once import Once
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, recovery, spool
from ckpt_observe.journal.directory import INTERRUPTED, JOURNALS, UNFINISHED, Counts, take_counts
from ckpt_observe.support.files import remove_tree

EACH: Final = 32 << 10
"""Bytes that a journal takes beside its records: its directory and small files."""


class DiskLimit:
    """Of one state directory. Used by one thread."""

    def __init__(self, state: Path, limit: int) -> None:
        self._root, self._limit = state / JOURNALS, limit
        self._once = Once()
        self._lost: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def health(self) -> Counts:
        """What was dropped of journals that we did not hold, and what their owners had counted, by metric and labels."""
        return dict(self._lost)

    def recover(self, pages: str) -> None:
        """Bring to disk what they hold in shared memory, half a mebibyte each or more: nobody else does before a daemon comes."""
        for name in {each.rpartition("-")[0] for each in os.listdir(pages)}:
            try:
                with self._taken(str(self._root / name), {}):
                    pass
            except OSError as error:
                self._once.say("pages", f"{self._root / name}: {error.strerror}; what it has in shared memory is not brought to disk")

    def keep_within_limit(self, held: Mapping[str, Outbox] | None = None) -> None:
        """`held` are those of ended processes that we deliver."""
        try:
            sizes = self._sizes()
            if sum(sizes.values()) > self._limit:
                self._shrink(sorted(sizes, key=_made, reverse=True), held or {})
        except FileNotFoundError:  # nothing was ever recorded here
            pass
        except OSError as error:
            self._once.say("disk", f"{self._root}: {error.strerror}; what ended processes left is not kept within its limit")

    def _sizes(self) -> dict[str, int]:
        return {entry.path: _size(entry.path) for entry in os.scandir(self._root) if not entry.name.endswith(UNFINISHED)}

    def _shrink(self, newest_first: list[str], held: Mapping[str, Outbox]) -> None:
        """Down to three quarters, so that not everybody who comes next has something to drop."""
        for sparing in (True, False):
            room, kept = self._limit * 3 // 4, 0
            for directory in newest_first:
                try:
                    dropped, left = self._cut(directory, held, max(0, room - kept - EACH), sparing=sparing)
                except OSError as error:  # the others are not to wait for it
                    self._once.say(directory, f"{directory}: {error.strerror}; it is not made smaller")
                    continue
                kept += left
                if dropped:
                    room = 0  # whatever is older goes too, though there may be room for a small one
                    self._say()
            if kept <= self._limit:
                return

    def _cut(self, directory: str, held: Mapping[str, Outbox], room: int, *, sparing: bool) -> tuple[bool, int]:
        """Whether anything was dropped, and the size of what is left; nothing of one that is not ours to touch, or removed since."""
        with self._taken(directory, held) as taken:
            if taken is None or not os.path.exists(directory):
                return False, 0
            spared = sparing and os.path.exists(os.path.join(directory, INTERRUPTED))
            dropped = taken.shrink(room, keep=int(spared))
            return dropped, _size(directory) if spool.segments(directory) else 0

    @contextmanager
    def _taken(self, directory: str, held: Mapping[str, Outbox]) -> Iterator[Outbox | None]:
        """None: its owner lives, or somebody else delivers it."""
        if directory in held:
            yield held[directory]
            return
        try:
            claim = claims.claim_dead(directory)
        except JournalError:  # damaged, or of a newer version: not ours to touch
            claim = None
        if claim is None:
            yield None
            return
        try:
            recovery.recover(claim)
            found = Outbox(directory, {}, claim.about.exporters or outbox.known(directory) or ("daemon",))
            yield found
            self._lost.update(found.health())
            if not spool.segments(directory):
                self._lost.update(take_counts(directory))
                remove_tree(directory)
        finally:
            claim.release()

    def _say(self) -> None:
        told = f"{self._root}: what ended processes left takes more than {self._limit >> 20} MiB, and the oldest of it is dropped"
        self._once.say("limit", f"{told}: nobody delivers it, or a destination is away; `ckpt-observe doctor` says which")


def _made(directory: str) -> str:
    """The name ends with the time."""
    return directory.rpartition("-")[2]


def _size(directory: str) -> int:
    try:
        return spool.size(directory) + EACH
    except OSError:  # removed since, or no directory
        return 0
