"""Names the keys of a state that grew since the previous save of the same task or path, for every library that reports sizes of keys.

A save belongs to the same series as an earlier one if both have the same library and path, in which the step does not count
(`step-100.pt`, `step-200.pt`), or, if their ids are not paths, the same task and namespace. This is done in delivery, because it needs no
time of the host program there, and because the previous save is often in another process.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from ckpt_observe.delivery.recent_values import store_recent
from ckpt_observe.delivery.save_details import Detail, DetailKey, SaveDetails
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_NUMBER: Final = re.compile(r"(?<![0-9])(?<!rank)(?<!rank[-_=.])[0-9]+")
"""A number that is not a rank: files of two ranks are not in the same series."""
_STEP_DIRECTORY: Final = re.compile(r".*(?:step|epoch|iter|iteration|ckpt|checkpoint)[-_=.]*[0-9]+", re.IGNORECASE)


class GrownKeys:
    """Adds the keys that grew to the records of saves. Called from any thread."""

    def __init__(self, details: SaveDetails) -> None:
        self._details = details
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._latest: dict[DetailKey, Detail] = {}
        """The latest save of each series."""
        self._answers: dict[str, dict[str, int]] = {}
        """What grew, by span id: another process annotates a record once for each exporter."""

    def annotate(self, lines: list[Any], attributes: Mapping[str, Any]) -> bool:
        """Add the keys that grew to a successful save. Return whether the lines were changed."""
        begin, end = lines[0], lines[-1]
        if begin[4] != "save" or names.KEY_SIZES not in attributes or (attributes.get(names.OUTCOME) or "ok") != "ok":
            return False
        key, sizes = _series(attributes), _key_sizes(attributes)
        if key is None or not sizes:
            return False
        with self._lock:
            grown = self._answers.get(begin[1])
            if grown is None:
                grown = self._compare(key, Detail(begin[2], sizes))
                store_recent(self._answers, begin[1], grown)
        if not grown:
            return False
        end[3] = {**(end[3] or {}), names.GROWN_KEYS: list(grown), names.GROWN_SIZES: list(grown.values())}
        return True

    def _compare(self, key: DetailKey, save: Detail) -> dict[str, int]:
        """Return what grew since the previous save of the series, and remember this one, unless a later one is known."""
        previous = self._latest.get(key) or self._details.find(key)
        if previous is not None and previous.unix_nano >= save.unix_nano:
            return {}
        store_recent(self._latest, key, save)
        self._details.put(key, save)
        return {} if previous is None else find_growth(previous.content, save.content)


def find_growth(previous: Mapping[str, int], current: Mapping[str, int]) -> dict[str, int]:
    """Return the keys that grew and by how many bytes, the one that grew most first.

    A save reports its largest keys only. A key that was not among them before had at most the size of the smallest of them. The rest is
    comparable only if the same keys are reported.
    """
    grown: dict[str, int] = {}
    for name, size in current.items():
        before = previous.get(name)
        if before is None:
            before = _largest_possible(previous) if name != OTHER else size
        elif name == OTHER and previous.keys() != current.keys():
            continue
        if size > before:
            grown[name] = size - before
    return dict(sorted(grown.items(), key=lambda item: -item[1])) if len(grown) > 1 else grown


def _largest_possible(sizes: Mapping[str, int]) -> int:
    """Return the largest possible size of a key that is not among the reported ones."""
    reported = [size for name, size in sizes.items() if name != OTHER]
    return min(reported) if len(reported) >= LARGEST_KEYS else 0


def _series(attributes: Mapping[str, Any]) -> DetailKey | None:
    id, task = attributes.get(names.ID), attributes.get(names.TASK_ID)
    system, rank = attributes.get(names.SYSTEM), attributes.get(names.RANK)
    if isinstance(id, str) and (os.path.isabs(id) or "://" in id):
        return "sizes", str(system), str(rank), _without_step(id)
    return None if task is None else ("sizes", str(system), str(rank), str(task), str(attributes.get(names.NAMESPACE)))


def _without_step(path: str) -> str:
    """Return a path without the numbers of steps: in its last part, and in the directory above if that is named after a step.

    Other directories may be numbered runs, which are not to be mixed up.
    """
    directory, _, last = path.rpartition("/")
    above, _, parent = directory.rpartition("/")
    if _STEP_DIRECTORY.fullmatch(parent) or (parent.isdecimal() and not _NUMBER.search(last)):
        parent = _NUMBER.sub("#", parent)
    return f"{above}/{parent}/{_NUMBER.sub('#', last)}"


def _key_sizes(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the largest keys. As in the metrics, the rest of the serialized state is `_other_`."""
    keys, bytes_of_keys = attributes.get(names.KEY_NAMES), attributes[names.KEY_SIZES]
    if not isinstance(keys, list) or not isinstance(bytes_of_keys, list):  # user code may set anything
        return {}
    pairs = zip(keys[:LARGEST_KEYS], bytes_of_keys, strict=False)
    sizes = {name: size for name, size in pairs if isinstance(name, str) and isinstance(size, int) and name != OTHER}
    serialized = attributes.get(names.SIZE_SERIALIZED)
    rest = serialized - sum(sizes.values()) if isinstance(serialized, int) else 0
    return {**sizes, OTHER: rest} if sizes and rest > 0 else sizes
