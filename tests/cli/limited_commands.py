"""Runs commands in this process with little memory, for tests that start it: one JSON list of arguments per line of standard input.

The limit is on address space, so that an allocation fails, and not the machine. The first line of the output is what became of an
allocation of more than the limit, as a control. Then there is a line for each command: exit code, output, errors.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys

from ckpt_observe import readers
from ckpt_observe.cli.main import COMMANDS, create_parser, main

ROOM = 768 * 2**20
"""Bytes on top of what the process needs before the first command: three times the limit for the structure of a file."""


def run(arguments):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(arguments)
        except SystemExit as exit:
            code = exit.code
        except BaseException as error:
            code = repr(error)
    return code, out.getvalue()[:10_000], errors.getvalue()


def limit_memory():
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


if __name__ == "__main__":
    for command in COMMANDS:
        create_parser([command])
    readers.read(sys.argv[1])  # what is imported now does not count
    limit_memory()
    try:
        size = len(bytearray(ROOM + 2**20))
    except MemoryError:
        size = 0
    print(size, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
