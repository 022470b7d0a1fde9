"""`--json` of every command, from recorded programs and real stores, matches the schema in `docs/schemas`, field by field."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_commands import SCHEMAS, TASK, fill

from ckpt_observe.cli import command_pages

LANGGRAPH = Path(__file__).parents[1] / "readers" / "golden" / "langgraph.db"
PROGRAM = """
import os, signal, sys
import ckpt_observe.auto, ckpt_observe
from ckpt_observe.core import Checkpointer

with ckpt_observe.task("trainer", id="run-1"), Checkpointer(sys.argv[1]) as checkpointer:
    for step in range(8):
        checkpointer.save("run-1", {"step": step, "messages": ["hello"] * 3000 * step}, step=step)
    checkpointer.load("run-1")
    try:
        with ckpt_observe.checkpoint("save", id="9", step=9) as operation, operation.phase("write"):
            raise OSError(28, "No space left on device")
    except OSError:
        pass
    if "killed" in sys.argv:
        with ckpt_observe.checkpoint("save", id="10", step=10), ckpt_observe.phase("write"):
            os.kill(os.getpid(), signal.SIGKILL)
"""
COMMANDS = {
    "traces": [["traces"], ["traces", "--last"], ["traces", "--outcome", "error"], ["traces", "--limit", "1"]],
    "why": [["why"]],
    "top": [["top", "--once"]],
    "timeline": [["timeline"]],
    "list": [["list", "STORE"], ["list", "STORE", TASK, "--tag", "best"], ["list", "LANGGRAPH"], ["list", "LANGGRAPH", "large"]],
    "show": [["show", "STORE"], ["show", "STORE", TASK, "latest"], ["show", "LANGGRAPH", "large"], ["show", "LANGGRAPH", "--depth", "4"]],
    "diff": [["diff", "STORE", TASK, "step:0", "latest"], ["diff", "LANGGRAPH", "large", "latest~1", "latest"]],
    "log": [["log", "STORE", TASK], ["log", "STORE", TASK, "--key", "plan"], ["log", "LANGGRAPH", "large"]],
    "verify": [["verify", "STORE"], ["verify", "LANGGRAPH"], ["verify", "DAMAGED"]],
    "prune": [["prune", "STORE", "--keep-last", "1"], ["prune", "STORE", "--keep-last", "2", "--yes"]],
    "drill": [["drill", "STORE"], ["drill", "STORE", "--max-age", "0s"], ["drill", "DAMAGED"]],
    "stats": [["stats", "STORE"], ["stats", "LANGGRAPH"], ["stats"]],
    "advise": [["advise"]],
    "doctor": [["doctor"]],
    "deliver": [["deliver"]],
    "clean": [["clean"], ["clean", "--yes"]],
}
"""Arguments for each command. `tail` is tested below, because it runs until it is stopped."""


def strict(schema):
    """Return a schema that allows only the fields that it describes: a field that is missing in the schema is found."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {} if "properties" not in schema or "additionalProperties" in schema else {"additionalProperties": False}
    return {**{name: strict(part) for name, part in schema.items()}, **closed}


def validator(command):
    return jsonschema.Draft202012Validator(strict(json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recorded"))


def record(directory):
    """Run a program that saves, fails and is killed, and create a store, and a store whose newest checkpoint is damaged."""
    for name in ("store", "damaged"):
        fill(f"file://{directory}/{name}")
    newest = directory / "damaged" / TASK / "step-003.ckpt"
    newest.write_bytes(newest.read_bytes()[:-2] + b"xx")
    program = [sys.executable, "-c", PROGRAM, str(directory / "observed"), "killed"]
    assert subprocess.run(program, env=environment(directory), check=False).returncode == -signal.SIGKILL
    return directory


def environment(directory):
    directories = {"CKPT_OBSERVE_DIR": "state", "CKPT_OBSERVE_PAGES_DIR": "pages"}
    return {**os.environ, **{name: str(directory / path) for name, path in directories.items()}, "CKPT_OBSERVE_EXPORTERS": "local"}


def run(directory, arguments):
    words = {"STORE": str(directory / "store"), "DAMAGED": str(directory / "damaged"), "LANGGRAPH": str(LANGGRAPH)}
    command = [sys.executable, "-m", "ckpt_observe", *(words.get(word, word) for word in arguments), "--json"]
    return subprocess.run(command, env=environment(directory), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_matches_its_schema(directory, tmp_path, command):
    """Every line is an object that the schema of the command describes, with no other fields."""
    if command in ("clean", "deliver", "prune"):  # they remove what the other tests read, or find nothing if others delivered it
        directory = record(tmp_path)
    for arguments in COMMANDS[command]:
        done = run(directory, arguments)
        assert done.returncode in (0, 3), done
        lines = done.stdout.splitlines()
        assert lines, arguments
        for line in lines:
            validator(command).validate(json.loads(line))


def test_tail_matches_its_schema(directory):
    """The same for the events that `tail` prints while a program runs."""
    command = [sys.executable, "-m", "ckpt_observe", "tail", "--json"]
    with subprocess.Popen(command, env=environment(directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert "following" in tail.stderr.readline()
        subprocess.run([sys.executable, "-c", PROGRAM, str(directory / "followed")], env=environment(directory), check=True)
        lines = [json.loads(tail.stdout.readline()) for _ in range(5)]
        tail.send_signal(signal.SIGINT)
    assert {line["event"] for line in lines} >= {"finished"}
    for line in lines:
        validator("tail").validate(line)


def test_every_command_is_covered():
    """A command with `--json` that has no arguments here fails this test."""
    assert {*COMMANDS, "tail"} == set(command_pages.json_types())


@pytest.mark.parametrize("command", [*COMMANDS, "tail"])
def test_schemas_are_not_empty(command):
    """The control: every schema refuses an object without the fields of the command, or with others."""
    assert not validator(command).is_valid({})
    assert not validator(command).is_valid({"unknown": 1})
