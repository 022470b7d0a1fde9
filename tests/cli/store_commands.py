"""Runs the commands for stores and checks their JSON against the published schemas. Used with every store."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jsonschema
import msgspec

from ckpt_observe.cli import command_pages
from ckpt_observe.cli.exit_codes import MEANINGS
from ckpt_observe.cli.main import main
from ckpt_observe.core import Checkpointer, extract

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
TASK = "run-42"
IDS = [f"step-{step:03}" for step in range(4)]


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@cache
def validator(command):
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8")))


@cache
def documentation(command):
    """The end of the help of a command, which lists its exit codes."""
    return command_pages.command_parsers()[command].epilog


class Commands:
    """Runs commands in this process. The output of `--json` is validated, and the exit code is one that the help lists."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, *arguments):
        self._capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        done = Done(code, *self._capsys.readouterr())
        assert f" {code} {MEANINGS[code]}" in documentation(arguments[0]), f"{arguments}: the help does not list exit code {code}"
        if "--json" in arguments and code in (0, 3):
            assert done.out
            for line in done.lines:
                validator(arguments[0]).validate(line)
        return done


def fill(url, **options):
    """Save four steps of a run, of which the third is tagged, and a failed task."""
    with Checkpointer(url, **options) as checkpointer:
        for step, id in enumerate(IDS):
            state = {"step": step, "messages": ["hello"] * (50 * step), "plan": ["think"] if step > 1 else ["look"]}
            tags = ("best",) if step == 2 else ()
            checkpointer.save(TASK, state, id=id, step=step, metadata={"lr": 0.1, "node": f"node-{step}"}, tags=tags)
        checkpointer.save("broken", {"x": 1}, id="only", status="failed", metadata={"error": {"class": "storage", "type": "OSError"}})


def check_list(run, url):
    """All checkpoints, the newest first; filters by every property."""

    def listed(*arguments):
        return [line["id"] for line in run("list", url, "--json", *arguments).lines]

    assert listed() == ["only", *reversed(IDS)]
    assert listed(TASK, "--limit", "2") == ["step-003", "step-002"]
    assert "there are more than 2" in run("list", url, TASK, "--limit", "2").err
    for filters, expected in {
        ("--status", "failed"): ["only"],
        ("--error-class", "storage"): ["only"],
        ("--error-type", "OSError"): ["only"],
        ("--tag", "best"): ["step-002"],
        ("--param", "lr=0.1", "--param", "node=node-1"): ["step-001"],
        ("--min-step", "1", "--max-step", "2"): ["step-002", "step-001"],
        ("--min-size", "1.4kB"): ["step-003"],
        ("--max-size", "0.35kB"): ["only"],
        ("--since", "1h", "--until", "2100-01-01", "--status", "failed"): ["only"],
    }.items():
        assert listed(*filters) == expected, filters
    assert len(listed("--since", "1h")) == 5
    none = run("list", url, "--until", "1h")
    assert (none.code, none.out, none.err) == (0, "", "ckpt-observe: no matching checkpoint\n")
    assert run("list", url).out.split()[:2] == ["TASK", "ID"]
    table = run("list", url, TASK).out.splitlines()
    assert table[0].split() == ["ID", "CREATED", "STEP", "STATUS", "KEYS", "SIZE", "STORED", "NOTES"]
    assert "node node-2, best" in table[2]


def check_show(run, url):
    """Keys and sizes of a store, a task and a checkpoint. The sizes of keys and `other_size` add up to the whole."""
    for arguments in ((), (TASK,), (TASK, "latest~1"), (TASK, "step:2"), (TASK, "step-002"), (TASK, "latest")):
        [contents] = run("show", url, *arguments, "--json").lines
        assert sum(entry["size"] for entry in contents["entries"]) + contents["other_size"] == contents["size"]
        assert contents["entries"][0]["name"] == "messages"
    lines = run("show", url).out.splitlines()
    assert any(line.startswith("messages") and "checkpoints 4" in line for line in lines)
    assert any(line.startswith("other ") for line in lines)
    assert "step-003" in run("show", url, TASK, "--by", "checkpoint").out
    assert run("show", url, "--by", "colour").code == 2
    for arguments in (("show", url, TASK, "latest"), ("show", url), ("diff", url, TASK, "step:0", "latest")):
        assert "nothing below them is shown" in run(*arguments, "--depth", "2").err, (
            "a depth that headers do not have is not ignored in silence"
        )
        assert "shown" not in run(*arguments).err


def check_diff(run, url):
    """Added, removed and changed keys. The exit code says whether there are any."""
    done = run("diff", url, TASK, "step:0", "latest", "--json")
    assert done.code == 3
    assert {".".join(change["path"]) for change in done.lines[0]["changes"]} == {"messages", "plan", "step"}
    assert "~  messages" in run("diff", url, TASK, "step:0", "latest").out
    same = run("diff", url, TASK, "latest", "step-003")
    assert (same.code, same.out, same.err) == (0, "", "ckpt-observe: 0 changed, 3 unchanged\n")
    assert run("diff", url, TASK, "latest").code == 2
    runs = run("diff", url, "broken", "latest", TASK, "step:0", "--json")
    assert runs.code == 3
    kinds = {"x": "removed", "messages": "added", "plan": "added", "step": "added"}
    assert {change["path"][0]: change["kind"] for change in runs.lines[0]["changes"]} == kinds, "between two tasks"
    assert run("diff", url, TASK, "step:0", TASK, "step-000").code == 0


def check_log(run, url):
    """The history of a key names the checkpoint, step and node that first had the present value."""
    done = run("log", url, TASK, "--key", "plan", "--json")
    assert [(line["id"], line["changed"]) for line in done.lines] == list(zip(IDS, [True, False, True, False], strict=True))
    assert done.lines[-1]["first_with_value"] == "step-002"
    assert "'plan' has its present value since checkpoint step-002, step 2, node node-2" in run("log", url, TASK, "--key", "plan").err
    [plan] = [line for line in run("log", url, TASK).out.splitlines() if line.startswith("plan ")]
    assert plan.split()[-3:] == ["step-002", "2", "node-2"]
    versions = {line["key"]: line["first_with_value"] for line in run("log", url, TASK, "--json").lines}
    assert versions == {"step": "step-003", "messages": "step-003", "plan": "step-002"}
    missing = run("log", url, TASK, "--key", "plam")
    assert (missing.code, "did you mean 'plan'?" in missing.err) == (4, True)


def check_extract(run, url):
    """The text is that of the library, in each format."""
    with Checkpointer(url) as checkpointer:
        info, state = checkpointer.resolve(TASK, "step:1"), checkpointer.load(TASK, "step-001")
    for style in ("markdown", "yaml", "json"):
        assert run("extract", url, TASK, "step-001", "--format", style).out == extract.extract(info, state, style)
    assert msgspec.json.decode(run("extract", url, TASK, "--format", "json").out)["state"]["step"] == 3


def check_verify(run, url):
    """Every checkpoint is read; a sample reads as many."""
    assert len(run("verify", url, "--json").lines) == 5
    assert run("verify", url).err == "ckpt-observe: checkpoints checked: 5; good: 5, with problems: 0\n"
    assert len(run("verify", url, TASK, "--sample", "2", "--json").lines) == 2


def check_stats(run, url):
    """Sizes, growth and largest keys of each task, and of the store."""
    *tasks, store = run("stats", url, "--json").lines
    assert [(task["task"], task["checkpoints"]) for task in tasks] == [(TASK, 4), ("broken", 1)]
    assert tasks[0]["bytes_per_checkpoint"] > 300
    assert [key["name"] for key in tasks[0]["keys"]] == ["messages", "plan", "step"]
    assert (store["type"], store["checkpoints"], store["keys"][0]["name"]) == ("store", 5, "messages")
    assert store["stored_size"] == sum(task["stored_size"] for task in tasks)
    text = run("stats", url).out
    assert [("there are more than 1" in run("stats", url, "--limit", limit).err) for limit in ("1", "2")] == [True, False]
    assert "largest keys: messages" in text
    assert (store["free_size"] is not None) == ("free on its disk" in text)


def check_names(run, url):
    """A wrong task or ID is not found, with a suggestion; an ambiguous prefix lists its matches."""
    for arguments, code, text in (
        (("show", url, "run-24"), 4, "did you mean 'run-42'?"),
        (("list", url, "run-24"), 4, "did you mean 'run-42'?"),
        (("extract", url, TASK, "stop-001"), 4, "did you mean 'step-001'?"),
        (("extract", url, TASK, "step-0"), 2, "ambiguous: it is the start of 4 checkpoint IDs of 'run-42': step-000, step-001"),
        (("show", url, TASK, "lastest"), 4, "did you mean 'latest'?"),
        (
            ("show", url, TASK, "latest~4"),
            4,
            "'run-42' has no checkpoint 'latest~4' among its 4; `ckpt-observe list STORE TASK` lists them",
        ),
        (("show", url, TASK, "step:7"), 4, "'run-42' has no checkpoint 'step:7' among its 4; `ckpt-observe list STORE TASK` lists them"),
        (("show", url, TASK, "at:yesterday"), 2, "'yesterday' is not a time"),
    ):
        done = run(*arguments)
        assert (done.code, done.out) == (code, ""), done
        assert text in done.err
        assert "Traceback" not in done.err


def check_drill(run, url):
    """The newest checkpoint of each task is loaded and checked."""
    with mock.patch.dict(os.environ, {"CKPT_OBSERVE_ENABLED": "false"}):
        assert [(line["task"], line["id"], line["state"]) for line in run("drill", url, "--json").lines] == [
            ("broken", "only", "ok"),
            (TASK, "step-003", "ok"),
        ]
        late = run("drill", url, TASK, "--max-time", "0s")
    assert (late.code, late.out.split()[8:10]) == (3, ["late", TASK])


def check_prune(run, url):
    """A dry run removes nothing and gives a reason per line; `--yes` removes what it showed."""
    policy = ("--keep-last", "1", "--keep-tag", "best")
    decisions = {line["id"]: line for line in run("prune", url, *policy, "--json").lines}
    assert [id for id, line in decisions.items() if not line["keep"]] == ["step-001", "step-000"]
    assert all(line["reason"] for line in decisions.values())
    assert decisions["step-002"]["reason"] == "tagged 'best'"
    assert decisions["step-000"]["reason"] == "not the newest, and not tagged 'best'"
    assert len(run("list", url, "--json").lines) == 5, "nothing was removed"
    assert "would remove 2 of 5 checkpoints" in run("prune", url, *policy).err
    assert "removed 2 of 5 checkpoints" in run("prune", url, *policy, "--yes").err
    assert [line["id"] for line in run("list", url, "--json").lines] == ["only", "step-003", "step-002"]
    assert run("prune", url).code == 2, "a policy is required"


CHECKS = (check_list, check_show, check_diff, check_log, check_extract, check_verify, check_stats, check_names, check_drill, check_prune)
"""The last one removes checkpoints."""
