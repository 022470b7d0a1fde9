"""Programs that the fault tests run and break: `python subjects.py <subject> <directory> <first> <count>`.

Each saves states {"n": 0}, {"n": 1}... and prints a line for each acknowledged save. Those whose name starts with `naive` are wrong on
purpose: a test rig that does not detect them is broken.
"""

from __future__ import annotations

import json
import os
import sys

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CheckpointError
from ckpt_observe.support import files, new_files

URLS = {
    "file": "file://{}/store",
    "named_file": "file://{}/store",
    "sqlite": "sqlite://{}/store.db",
    "naive_no_directory_sync": "file://{}/store",
}


def checkpoint_saver(subject, directory):
    checkpointer = Checkpointer(URLS[subject].format(directory))

    def save(n):
        checkpointer.save("t", {"n": n, "text": "x" * 3000}, id=f"c{n}", step=n)

    return save


def skip_directory_sync():
    """A common mistake: the file is synced, but its name is not."""
    real = os.fsync

    def fsync(descriptor):
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            real(descriptor)

    files.os = new_files.os = type(sys)("os")
    files.os.__dict__.update(os.__dict__)
    files.os.fsync = fsync


def naive_in_directory(directory):
    """Overwrites its only file, in two writes."""

    def save(n):
        data = json.dumps({"n": n, "text": "x" * 3000}).encode()
        file = os.open(f"{directory}/state.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, data[:100])
        os.write(file, data[100:])
        os.fsync(file)
        os.close(file)

    return save


def naive_ignoring_errors(directory):
    """Reports success even if the save failed."""
    save = naive_in_directory(directory)

    def save_carelessly(n):
        try:
            save(n)
        except OSError:
            pass

    return save_carelessly


def main(subject, directory, first, count):
    if subject == "naive_no_directory_sync":
        skip_directory_sync()
    if subject == "named_file":
        new_files._UNNAMED = os.O_WRONLY  # as on a system without unnamed files
    save = checkpoint_saver(subject, directory) if subject in URLS else globals()[subject](directory)
    for n in range(first, first + count):
        try:
            save(n)
        except CheckpointError as error:
            os.write(1, f"refused {error.error_class} {error.code}\n".encode())
            return
        os.write(1, f"saved {n}\n".encode())  # a single call, so that tests can count them


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
