"""`ckpt-observe advise` and `stats`, from the traces of a real program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from store_commands import validator

PROGRAM = """
import os, sys
import ckpt_observe.auto, ckpt_observe
from ckpt_observe.core import Checkpointer
with ckpt_observe.task("agent", id="run-1"):
    for step in range(5):
        Checkpointer(sys.argv[1]).save("run-1", {"messages": ["word " * 20_000] * (step + 1), "step": step}, step=step)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
"""


def test_advice_from_traces(command, tmp_path):
    """A program that died between two saves counts as an interruption; interval and largest key are recommended, with numbers."""
    for end in ("die", "live"):
        command("run", "--", sys.executable, "-c", PROGRAM, str(tmp_path / "store"), end)
    done = command("advise", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["subject"]: row for row in map(json.loads, done.stdout.splitlines())}
    for row in rows.values():
        validator("advise").validate(row)
    assert rows["interval"]["numbers"]["deaths"] == 1
    assert "1 process died in" in rows["interval"]["reason"]
    assert rows["key"]["action"].startswith("Shorten 'messages'")
    assert "task agent: interval\n  " in command("advise").stdout
    assert "you say that a process dies every 1h 00m" in command("advise", "--mtbf", "1h", "--task", "agent").stdout.replace("\n ", "")
    nothing = command("advise", "--task", "nobody")
    assert (nothing.returncode, nothing.stdout) == (4, "")
    [saves] = [row for row in map(json.loads, command("stats", "--json").stdout.splitlines()) if row["statistics"]["operation"] == "save"]
    validator("stats").validate(saves)
    assert saves["statistics"]["outcomes"] == {"ok": 10}
    assert command("stats").stdout.splitlines()[1].split()[:4] == ["agent", "save", "10", "0"]


def test_advice_for_a_program_without_a_task(command, tmp_path):
    """`--task` takes the name that the advice itself shows."""
    program = "import ckpt_observe.auto, sys; from ckpt_observe.core import Checkpointer\n"
    program += "for step in range(4): Checkpointer(sys.argv[1]).save('run-1', {'text': 'word ' * 9000 * step}, step=step)"
    command("run", "--service", "trainer", "--", sys.executable, "-c", program, str(tmp_path / "store"))
    done = command("advise")
    assert "task trainer: " in done.stdout
    assert command("advise", "--task", "trainer").stdout == done.stdout


def test_advice_for_a_program_with_a_task(command, tmp_path):
    """`--task` with the name of a program selects its tasks, as in `traces`."""
    command("run", "--service", "trainer", "--", sys.executable, "-c", PROGRAM, str(tmp_path / "store"), "live")
    done = command("advise", "--task", "trainer")
    assert (done.returncode, done.stdout) == (0, command("advise", "--task", "agent").stdout)


def test_sampler_leaves_operations_out(command, tmp_path):
    """With a sampler, each command that counts operations says in one line that those of other traces are missing."""
    ratio = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
    line = "0.1 of the new traces are sampled (OTEL_TRACES_SAMPLER=traceidratio); operations of unsampled traces are not included"
    nothing = command("stats", OTEL_TRACES_SAMPLER="always_off")
    assert (nothing.returncode, "no new trace is sampled" in nothing.stderr) == (4, True)
    command("run", "--", sys.executable, "-c", PROGRAM, str(tmp_path / "store"), "live")
    for arguments in (("stats",), ("top", "--once"), ("advise",), ("traces",)):
        assert [command(*arguments, **variables).stderr.count(line) for variables in ({}, ratio)] == [0, 1], arguments
    assert f"{line}, except failures" in command("stats", **ratio, CKPT_OBSERVE_UNSAMPLED_FAILURES="true").stderr


def test_no_time_between_failures_is_wrong_usage(command):
    """`--mtbf 0s` does not mean "as measured"."""
    done = command("advise", "--mtbf", "0s")
    assert (done.returncode, "'0s' is not longer than 0 s" in done.stderr) == (2, True)
