"""Removes the journals of dead processes with everything in them, also what was not delivered. For `ckpt-observe clean`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ckpt_observe.errors import DamagedJournalError, JournalError
from ckpt_observe.journal import claims
from ckpt_observe.journal.directory import DAMAGED_JOURNALS, JOURNALS, UNFINISHED, list_page_files
from ckpt_observe.support.files import remove_tree


def remove_dead_journals(state: Path) -> list[str]:
    """Remove every journal that no process uses, and the damaged ones that were moved aside. Return the names of those that stay."""
    root = state / JOURNALS
    names = [name for name in sorted(os.listdir(root)) if not name.endswith(UNFINISHED)] if root.is_dir() else []
    remaining = [name for name in names if not _remove(str(root / name))]
    shutil.rmtree(state / DAMAGED_JOURNALS, ignore_errors=True)
    return remaining


def _remove(directory: str) -> bool:
    try:
        claim = claims.claim_dead(directory)
    except DamagedJournalError:
        return claims.quarantine(directory) is not None
    except JournalError:  # of a newer version
        return False
    if claim is None:
        return not os.path.exists(directory)
    try:
        for path in list_page_files(directory, claim.about):  # first: without their journal, nobody would find them
            os.unlink(path)
        remove_tree(directory)
    finally:
        claim.release()
    return True
