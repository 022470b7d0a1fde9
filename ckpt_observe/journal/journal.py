"""The journal of this process: created at its first operation, removed at its end if everything was delivered."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe.errors import JournalError
from ckpt_observe.journal.directory import ABOUT, DELIVERY_LOCK, JOURNALS, OPEN_PAGES, VERSION, About, boot_id, create_journal
from ckpt_observe.journal.locations import page_places, private_directory
from ckpt_observe.journal.orphans import owner_note
from ckpt_observe.journal.page_file import heartbeat_page
from ckpt_observe.journal.pool import Pool
from ckpt_observe.journal.spool import Spool
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.locks import FileLock, is_locked
from ckpt_observe.support.logs import warn
from ckpt_observe.support.process_memory import peak_memory


class Journal:
    """A journal as its owner uses it. `pages` is the configured directory for pages, or None for the default."""

    def __init__(
        self,
        state: Path,
        pages: Path | None,
        exporters: Sequence[str],
        resource: dict[str, Any],
        delivery: str = "in-process",
        missed: int = 0,
        attributes: dict[str, Any] | None = None,
        *,
        is_resource_known: bool = True,
    ) -> None:
        """`is_resource_known`: False if `set_resource` will be called. Until then, the owner lets nobody else deliver."""
        root = private_directory(private_directory(state) / JOURNALS)
        now = time.time_ns()
        name = f"{os.getpid()}-{now:x}"
        places = page_places(state, pages)
        self.about = About(
            VERSION,
            os.getpid(),
            boot_id(),
            now,
            str(places[0].directory / name),
            tuple(exporters),
            resource,
            delivery,
            missed,
            attributes or {},
        )
        self.directory = str(root / name)
        self._owner_lock, self._delivery_lock = create_journal(self.directory, self.about)
        self.resource_known = threading.Event()
        """Set when `about` has its final resource."""
        self._is_closed = False
        self._about_lock = threading.Lock()
        """Held while `about.json` is written again, which must not happen after the journal is released."""
        if is_resource_known:
            self._let_others_deliver()
        self.spool = Spool(self.directory)
        self._last_images: list[bytes] = []
        """The pages in `open.pages`, which is written again only if they changed."""
        self._name_is_durable = False
        """Whether the names of the journal and of its parent directory survive a power failure: after the first sync."""
        self._copy_lock = threading.Lock()
        """Held while `open.pages` is written or removed: a copy that outlives the pages would be trusted."""
        try:
            self.pool = Pool([(str(place.directory / name), place.mapped) for place in places], self.spool.append)
            self.pool.write_owner_note(owner_note(self.directory))
        except BaseException as error:
            self.remove()
            raise_host_exception(error)
            if not isinstance(error, OSError):
                raise
            raise JournalError(
                f"{self.about.pages}: cannot allocate pages ({error.strerror}); set CKPT_OBSERVE_PAGES_DIR to a directory with room"
            ) from error
        self.pool.counts["missed"] = missed
        self.take: Final = self.pool.take
        """Returns a page for a new operation, or None if the journal is closed."""

    def set_resource(self, resource: dict[str, Any]) -> None:
        """Set the final resource, which was not known when the journal was created. Does nothing if the journal is closed."""
        with self._about_lock:
            if self._is_closed:
                return
            self.about = msgspec.structs.replace(self.about, resource=resource)
            try:
                files.replace_file(os.path.join(self.directory, ABOUT), self.about.encode(), sync=True)
            except OSError as error:  # the disk is full: another process would deliver with the former resource
                raise_host_exception(error)
                warn("Cannot write the resource attributes that detectors found: %s", error)
            self._let_others_deliver()

    def _let_others_deliver(self) -> None:
        self.resource_known.set()
        if self.about.delivery != "in-process":
            self._delivery_lock.release()

    def count_recorded(self) -> int:
        """Return how many operations and tasks have finished."""
        return self.pool.count_recorded()

    def take_over_delivery(self) -> bool:
        """Make the owner the process that delivers the journal. Return False if another process already delivers it."""
        lock = FileLock.try_acquire(os.path.join(self.directory, DELIVERY_LOCK), create=False)
        self._delivery_lock = lock or self._delivery_lock
        return lock is not None

    def has_deliverer(self) -> bool:
        """Return whether some process delivers the journal, the owner included. Raise OSError if the directory is gone."""
        return is_locked(os.path.join(self.directory, DELIVERY_LOCK))

    def sync(self) -> None:
        """Make everything recorded so far survive a power failure: the spool, and a copy of the pages that are not in the spool yet."""
        with self._copy_lock:
            self._sync_names()
            images = self.pool.read_uncollected()  # first: an operation that moves to the spool meanwhile is in one of the two, or in both
            self.spool.sync()
            if not self.pool.closed:
                self._save_images(images)

    def _sync_names(self) -> None:
        if not self._name_is_durable:
            root = os.path.dirname(self.directory)
            for path in (root, os.path.dirname(root)):
                files.sync_directory(path)
            self._name_is_durable = True

    def _save_images(self, images: list[bytes]) -> None:
        if images != self._last_images:
            content = b"".join(
                (heartbeat_page(time.time_ns(), peak_memory()), *images)
            )  # one write: each gives up the GIL, which a busy program keeps
            files.replace_file(os.path.join(self.directory, OPEN_PAGES), content, sync=True)
            self._last_images = images

    def close_after_fork(self) -> None:
        """In a forked child: close the parent's pages. The locks reset themselves."""
        self.pool.close()

    def release(self) -> None:
        """Leave undelivered records to the next process.

        If an operation still runs, the locks stay held until this process ends, because its page is in use. It is recovered after that.
        """
        self._close_about()
        self.spool.close()
        with self._copy_lock:
            if self.pool.retire():
                if self.pool.has_uncollected():  # the disk has no room for them: leave them in the pages
                    self.pool.close()
                else:  # empty pages are half a mebibyte of shared memory or more
                    self._remove_pages()
                self._release_locks()

    def remove(self) -> None:
        """Remove the journal with its pages and spool. Call it only if everything was delivered."""
        self._close_about()
        if hasattr(self, "pool"):
            with self._copy_lock:
                self._remove_pages()
        self.spool.close()
        files.remove_tree(self.directory)  # if we die halfway, the rest looks like a journal that was never completed
        self._release_locks()

    def _close_about(self) -> None:
        with self._about_lock:
            self._is_closed = True

    def _remove_pages(self) -> None:
        with ignore_errors(OSError):  # the copy first: once the pages are gone, recovery would trust it
            os.unlink(os.path.join(self.directory, OPEN_PAGES))
        self.pool.remove()

    def _release_locks(self) -> None:
        self._delivery_lock.release()
        self._owner_lock.release()
