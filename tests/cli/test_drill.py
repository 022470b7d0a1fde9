"""`ckpt-observe drill`: restore drills are recorded as operations with metrics."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_commands import TASK, fill, validator

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import IntegrityError
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line


@pytest.fixture
def drill(command, tmp_path):
    """Drill a new file store. Returns the process, its results by task, the recorded drills by task, and the metrics."""
    fill(f"file://{tmp_path}/store")

    def run(*arguments):
        textfile = tmp_path / "metrics.prom"
        variables = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "CKPT_OBSERVE_METRICS_TEXTFILE": str(textfile)}
        done = command("drill", str(tmp_path / "store"), "--json", *arguments, **variables)
        results = {}
        for line in map(json.loads, done.stdout.splitlines()):
            validator("drill").validate(line)
            results[line["task"]] = line
        spans = map(from_json_line, command("traces", "--json").stdout.splitlines())
        drills = {span.attributes[names.TASK_ID]: span for span in spans if span.attributes.get(names.OPERATION) == "drill"}
        return done, results, drills, textfile.read_text()

    run.store = tmp_path / "store"
    return run


def value(metrics, name, **labels):
    [line] = [
        line
        for line in metrics.splitlines()
        if line.startswith(f"{name}{{") and all(f'{label}="{value}"' in line for label, value in labels.items())
    ]
    return float(line.rpartition(" ")[2])


def test_drill_is_recorded(drill):
    """A drill of each task is a span with age and phases, and metrics: age, time to recover, last success. Nothing counts as a restore."""
    done, results, drills, metrics = drill()
    assert (done.returncode, done.stderr) == (0, "")
    assert {task: (result["id"], result["state"]) for task, result in results.items()} == {
        TASK: ("step-003", "ok"),
        "broken": ("only", "ok"),
    }
    assert drills.keys() == results.keys()
    span = drills[TASK]
    assert span.trace_id == results[TASK]["trace_id"]
    assert (span.attributes[names.ID], span.attributes[names.STEP], span.attributes[names.OUTCOME]) == ("step-003", 3, "ok")
    assert span.attributes[names.SOURCE_AGE] == pytest.approx(results[TASK]["age"], abs=1)
    assert value(metrics, "checkpoint_drill_age_seconds_count", task=TASK) == 1
    assert value(metrics, "checkpoint_operation_duration_seconds_count", operation="drill", task=TASK) == 1
    assert value(metrics, "checkpoint_last_success_timestamp_seconds", operation="drill", task=TASK) > 0
    assert value(metrics, "checkpoint_last_verified_restore_timestamp_seconds", task=TASK) > 0
    assert "checkpoint_restore_age" not in metrics


def test_failed_drill(drill):
    """A damaged newest checkpoint is exit code 3, an error of the drill, and counts as corruption. Other tasks are drilled, too."""
    path = drill.store / TASK / "step-003.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done, results, drills, metrics = drill()
    assert done.returncode == 3
    assert (results[TASK]["state"], results[TASK]["code"]) == ("failed", "integrity.checksum_mismatch")
    assert results["broken"]["state"] == "ok"
    assert (drills[TASK].attributes[names.OUTCOME], drills[TASK].attributes[names.ERROR_CLASS]) == ("error", "integrity")
    assert value(metrics, "checkpoint_corruption_total", operation="drill", task=TASK) == 1
    assert value(metrics, "checkpoint_consecutive_failures", operation="drill", task=TASK) == 1


@pytest.mark.parametrize(("option", "state", "code"), [("--max-age", "late", 3), ("--max-time", "ok", 0)])
def test_limits(drill, option, state, code):
    """A checkpoint that is too old, or that takes too long to load, is a problem."""
    with Checkpointer(drill.store) as checkpointer:
        assert checkpointer.drill(TASK).age > 0
    done, results, _, _ = drill(TASK, option, "0.000001s" if code else "1h")
    assert (done.returncode, results[TASK]["state"]) == (code, state)


def test_library_function(tmp_path):
    """`Checkpointer.drill` loads the newest checkpoint without changing the parent of the next one, and raises what a load would raise."""
    with Checkpointer(tmp_path / "store") as checkpointer:
        first = checkpointer.save("run", {"a": 1}, id="1", step=1)
        with Checkpointer(tmp_path / "store") as other:
            other.save("run", {"a": 2}, id="2", step=2)
        drill = checkpointer.drill("run")
        assert (drill.info.id, drill.altered, drill.skipped) == ("2", (), ())
        assert drill.age >= 0
        assert drill.seconds > 0
        assert checkpointer.save("run", {"a": 3}, id="3").parent == first.id
        path = tmp_path / "store" / "run" / "3.ckpt"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(IntegrityError, match=re.escape("'3'")):
            checkpointer.drill("run")
