"""What a host program can see of its observer: environment, threads, descriptors, random numbers, signal handlers. `sys.modules` is left out.

The program looks at its start, after its work, and once more after all exit handlers. While something is recorded, our threads and
descriptors exist; at the exit they must be gone.
"""

from __future__ import annotations

import json
from pathlib import Path

from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.faults.host_compat.observers import Observer

PROGRAM = """
import json, os, random, signal, sys, threading
import numpy

def look():
    descriptors = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors[number] = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
        except FileNotFoundError:  # that of the directory itself
            pass
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "_CKPT_OBSERVE_RUN_PID")},
        "threads": [len(os.listdir("/proc/self/task")), sorted(thread.name for thread in threading.enumerate())],
        "descriptors": descriptors,
        "random numbers": [repr(random.getstate()), numpy.random.get_state()[1].tobytes().hex(), numpy.random.get_state()[2]],
        "signal handlers": {number: repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "hooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.unraisablehook), sys.getrecursionlimit(), os.getcwd()],
        "umask": (mask := os.umask(0o77), os.umask(mask))[0],
    }

class LastLook:
    def __del__(self):
        looks["at exit"] = look()
        os.write(os.open("looks.json", os.O_WRONLY | os.O_CREAT), json.dumps(looks).encode())  # `open` no longer exists

_last_look = LastLook()  # Python removes names with an underscore first, after all exit handlers
random.seed(1)
numpy.random.seed(1)
looks = {"at start": look()}
from ckpt_observe.core import Checkpointer
checkpointer = Checkpointer("file://" + os.path.abspath("store"))
for number in range(SAVES):
    checkpointer.save("task", {"n": number, "random": random.random(), "array": numpy.random.rand(4).tolist()})
print(json.dumps(checkpointer.load("task")) if SAVES else "nothing")
looks["after the work"] = {name: value for name, value in look().items() if not SAVES or name not in ("threads", "descriptors")}

sys.exit(3)
"""


def differences(first: Observer, second: Observer, root: Path, saves: int) -> list[str]:
    """Run the program under two observers. Return what it sees differently."""
    looks = [_look(observer, root, saves) for observer in (first, second)]
    assert set(looks[0]) == set(looks[1]) == {"result", "at start", "after the work", "at exit"}
    return [
        f"{moment}: {subject}"
        for moment, subjects in looks[0].items()
        for subject, value in subjects.items()
        if looks[1][moment][subject] != value
    ]


def is_recorded(root: Path, saves: int) -> bool:
    """Return whether the saves of the program, and its load, are in the trace store: only then was it observed."""
    path = root / "state" / FILENAME
    if not path.exists():
        return saves == 0
    with TraceReader(path) as reader:
        return sum(trace.operations for trace in reader.newest(1000)) == saves + 1


def _look(observer: Observer, root: Path, saves: int) -> dict[str, dict[str, object]]:
    """Run the program in a directory that is the same for all observers. Return what it saw."""
    directory = root / "host"
    directory.mkdir(parents=True)
    (directory / "host.py").write_text(PROGRAM.replace("SAVES", str(saves)))
    result = observer.run(["host.py"], directory, root / "state")
    looks = json.loads((directory / "looks.json").read_text())
    directory.rename(root / f"host-{observer.name.replace(' ', '-')}")
    errors = [line for line in result.stderr.splitlines() if not line.startswith("ckpt-observe: ")]  # without the summary of `run`
    return {"result": {"exit code": result.returncode, "output": result.stdout, "errors": errors}, **looks}
