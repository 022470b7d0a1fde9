"""Programs that the fault rigs run and break: `python subjects.py <subject> <place> [count]`.

Each saves states {"n": 0}, {"n": 1}... and prints a line for each save it was told is durable. Those whose name begins with
`naive` do it wrong on purpose: a rig that does not catch them is broken.
"""

from __future__ import annotations

import json
import os
import sys

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CheckpointError
from ckpt_observe.support import files, new_files

OURS = {
    "file": "file://{}/store",
    "named_file": "file://{}/store",
    "sqlite": "sqlite://{}/store.db",
    "naive_no_directory_sync": "file://{}/store",
}


def ours(subject, place):
    checkpointer = Checkpointer(OURS[subject].format(place))

    def save(n):
        checkpointer.save("t", {"n": n, "text": "x" * 3000}, id=f"c{n}", step=n)

    return save


def skip_directory_sync():
    """The mistake of most: the file is synced, its name is not."""
    real = os.fsync

    def fsync(descriptor):
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            real(descriptor)

    files.os = new_files.os = type(sys)("os")
    files.os.__dict__.update(os.__dict__)
    files.os.fsync = fsync


def naive_in_place(place):
    """Overwrites the one file it has, in two writes."""

    def save(n):
        data = json.dumps({"n": n, "text": "x" * 3000}).encode()
        file = os.open(f"{place}/state.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, data[:100])
        os.write(file, data[100:])
        os.fsync(file)
        os.close(file)

    return save


def naive_ignoring_errors(place):
    """Reports success whatever happened."""
    save = naive_in_place(place)

    def careless(n):
        try:
            save(n)
        except OSError:
            pass

    return careless


def main(subject, place, first, count):
    if subject == "naive_no_directory_sync":
        skip_directory_sync()
    if subject == "named_file":
        new_files._UNNAMED = os.O_WRONLY  # as where the system has no files without a name
    save = ours(subject, place) if subject in OURS else globals()[subject](place)
    for n in range(first, first + count):
        try:
            save(n)
        except CheckpointError as error:
            os.write(1, f"refused {error.error_class} {error.code}\n".encode())
            return
        os.write(1, f"saved {n}\n".encode())  # one call, so that a rig can count


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
