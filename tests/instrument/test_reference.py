"""The reference core, observed: every operation and phase, what they say, and the link from a restore to its save."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest
from opentelemetry import trace

import ckpt_observe
from ckpt_observe.core import Checkpointer, Query, ciphers, hooks
from ckpt_observe.core.runner import Done, Graph, RunSettings, resume_graph, run_agent, run_graph
from ckpt_observe.core.runner.triggers import EverySteps
from ckpt_observe.core.workspace import Workspace
from ckpt_observe.errors import CheckpointNotFoundError, SerializationError
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.instrumentors import InstrumentorContract
from ckpt_observe.testing.spans import outline
from ckpt_observe.tracestore import FILENAME, TraceReader

STATE = {"step": 3, "messages": ["hello"] * 50}


class TestReference(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.reference:ReferenceInstrumentor"
    use = "from ckpt_observe.core import Checkpointer; Checkpointer('memory://').save('t', {'a': 1})"


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages", enabled=True)
    yield watch
    watch.close()


@pytest.fixture
def spans(watch):
    """All spans recorded so far, oldest trace first."""

    def read():
        assert watch.flush(timeout=30)
        with TraceReader(watch.settings.dir / FILENAME) as reader:
            return [span for trace in reversed(reader.newest()) for span in reader.spans(trace.trace_id)]

    return read


def test_every_operation_and_phase(spans, tmp_path):
    """L1, L2: save, load, restore, list, delete, verify and prune each have a span, with the phases they really had."""
    checkpointer = Checkpointer(tmp_path / "ckpt", compression="gzip", keep_last=1)
    with ckpt_observe.task("train", id="run-1"):
        first = checkpointer.save("run-1", STATE, step=1)
        checkpointer.save("run-1", STATE, step=2)
        checkpointer.load("run-1")
        checkpointer.restore("run-1", into={})
        checkpointer.verify("run-1")
        checkpointer.list("run-1")
        checkpointer.delete("run-1", checkpointer.list("run-1")[0].id)
    assert first.step == 1
    saved = ["serialize", "compress", "write", "validate"]
    loaded = ["read", "validate", "decompress", "deserialize"]
    assert outline(spans()).splitlines() == [
        "task train",
        *_operation("save", *saved),
        *_operation("save", *saved),
        "    checkpoint.prune",
        *_operation("load", *loaded),
        *_operation("restore", *loaded, "apply"),
        *_operation("verify", "read", "validate", *_checked(spans())),
        *_operation("list"),
        *_operation("list"),
        *_operation("delete"),
    ]


def test_runs_are_tasks(spans, tmp_path):
    """L2, L11: a run of an agent or a graph is a task with its checkpoints beneath it, unless the program has named a task around it."""
    checkpointer = Checkpointer(tmp_path / "ckpt")
    run_agent("writer", lambda state, _session: Done(state), 1, checkpointer)
    shape = Graph(nodes={"a": lambda _state: {"n": 1}}, edges={}, entry="a", exits=frozenset({"a"}))
    with pytest.raises(CheckpointNotFoundError):
        resume_graph(shape, "run-7", checkpointer)
    with ckpt_observe.task("mine"):
        run_graph(shape, {}, checkpointer, run_id="run-8", settings=RunSettings(trigger=EverySteps(1)))
    tasks = [span for span in spans() if span.name.startswith("task ")]
    assert [(span.name, span.attributes.get(names.TASK_ID)) for span in tasks] == [
        ("task writer", "writer"),
        ("task graph", "run-7"),
        ("task mine", None),
    ]
    beneath = {task.name: [span.name for span in spans() if span.parent_span_id == task.span_id] for task in tasks}
    assert beneath["task writer"] == ["checkpoint.save"]
    assert beneath["task mine"][0] == "checkpoint.save"


def test_error_of_an_encrypted_run_is_not_quoted(spans):
    """D7: what the step of a run says when it fails may quote the state, which nobody but the holder of the key shall read."""
    pytest.importorskip("cryptography")

    def fail(_state, _session):
        raise ValueError("patient Ann")

    for cipher in (ciphers.AeadCipher(bytes(32)), None):
        with pytest.raises(ValueError):
            run_agent("agent", fail, 1, Checkpointer("memory://", encryption=cipher))
    secret, plain = (str(span.events) for span in spans() if span.name == "task agent")
    assert "ValueError" in secret
    assert "Ann" not in secret
    assert "Ann" in plain


def test_keys_queries_and_workspaces(spans, tmp_path):
    """L1, L14: keys that are read alone are a load, a query is a list, and snapshots of a directory are saved and restored."""
    checkpointer = Checkpointer(tmp_path / "ckpt")
    checkpointer.save("run-1", {"large": "x" * 5000, "small": 1}, id="one")
    assert checkpointer.open("run-1")["small"] == 1
    assert checkpointer.open("run-1").get("missing") is None  # and no load that failed
    assert len(checkpointer.find(Query(task="run-1"))) == 1
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content")
    workspace = Workspace(tmp_path / "snapshots", "run-1")
    workspace.save(tmp_path / "work", "one")
    workspace.restore(tmp_path / "work", id="one")
    _, load, found, save, restore = [span for span in spans() if span.attributes.get(names.OPERATION)]
    assert [span.name for span in (load, found, save, restore)] == [
        "checkpoint.load",
        "checkpoint.list",
        "checkpoint.save",
        "checkpoint.restore",
    ]
    assert {span.attributes[names.TASK_ID] for span in (load, found, save, restore)} == {"run-1"}
    assert {span.attributes[names.ID] for span in (load, save, restore)} == {"one"}
    assert (found.attributes[names.COUNT], save.attributes[names.STORE]) == (1, "git")
    [read] = [span for span in spans() if span.parent_span_id == load.span_id]
    assert (read.name, read.attributes[names.PHASE_BYTES_OUT]) == ("checkpoint.read", 1)


def _operation(name, *phases):
    return [f"  checkpoint.{name}", *(f"    checkpoint.{phase}" for phase in phases)]


def _checked(spans):
    """Whether a verification also decompresses and decodes is the core's choice."""
    verify = next(span for span in spans if span.name == "checkpoint.verify")
    inside = [span.attributes[names.PHASE] for span in spans if span.parent_span_id == verify.span_id]
    assert inside[:2] == ["read", "validate"]
    return inside[2:]


def test_what_a_load_found_wrong(spans, tmp_path, monkeypatch):
    """N4: keys that came back as another type, and damaged checkpoints that were passed over, are on the span."""
    checkpointer = Checkpointer(tmp_path / "ckpt", fallback=True)
    checkpointer.save("run-1", STATE)
    newest = checkpointer.save("run-1", STATE)
    file = next(path for path in (tmp_path / "ckpt").rglob("*") if path.is_file() and newest.id in path.name)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(checkpointer.serializer, "decode", lambda _: {**STATE, "step": "3"})
    checkpointer.load("run-1")
    [load] = [span for span in spans() if span.name == "checkpoint.load"]
    assert (load.attributes[names.DAMAGED_COUNT], load.attributes[names.ALTERED_KEYS]) == (1, ["step"])
    checkpointer.verify("run-1")
    [verify] = [span for span in spans() if span.name == "checkpoint.verify"]
    assert (verify.attributes[names.DAMAGED_COUNT], verify.attributes[names.ALTERED_KEYS]) == (1, ["step"])


def test_what_a_save_says(spans):
    """L3, L4: sizes, ratio, format, codec, digest, shape of the state, task and throughput are on the span, in the registry's types."""
    with ckpt_observe.task("train", id="run-1", user="u", session="s"):
        info = Checkpointer("memory://", format="msgpack", compression="zstd").save("run-1", STATE, step=3, status="done")
    save = next(span for span in spans() if span.name == "checkpoint.save")
    said = save.attributes
    assert said[names.ID] == info.id
    assert (said[names.SYSTEM], said[names.STORE], said[names.FORMAT], said[names.CODEC]) == ("reference", "memory", "msgpack", "zstd")
    assert (said[names.TASK_NAME], said[names.TASK_ID], said[names.USER_ID], said[names.SESSION_ID]) == ("train", "run-1", "u", "s")
    assert (said[names.SIZE_SERIALIZED], said[names.SIZE_STORED]) == (info.serialized_size, info.stored_size)
    assert said[names.RATIO] == pytest.approx(info.serialized_size / info.stored_size, abs=0.001)
    assert (said[names.STEP], said[names.STATUS], said[names.DIGEST]) == (3, "done", info.digest)
    assert (said[names.STATE_TYPE], said[names.STATE_KEYS], said[names.STATE_DEPTH]) == ("dict", 2, 3)
    assert dict(zip(said[names.KEY_NAMES], said[names.KEY_SIZES], strict=True)) == {name: key.size for name, key in info.keys.items()}
    assert said[names.THROUGHPUT] > 0
    kinds = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": list, "int[]": list}
    assert all(isinstance(value, kinds[names.ATTRIBUTES[name].kind]) for name, value in said.items())


def test_keys_of_a_save_are_few_and_only_names(spans):
    """Of many keys the largest are told, with their sizes; a secret or a person that was used as a key is not, and no value is."""
    state = {**{f"small-{number}": 1 for number in range(50)}, **{f"large-{number}": "content" * 100 for number in range(8)}}
    checkpointer = Checkpointer("memory://")
    checkpointer.save("run-1", state)
    checkpointer.save("run-1", {"password=hunter2": 1, "ada@example.org": 2, "Ada Lovelace": 3, "model.weight_1": 4})
    checkpointer.save("run-1", ["no", "keys"])
    many, secret, none = (span.attributes for span in spans() if span.name == "checkpoint.save")
    assert set(many[names.KEY_NAMES]) == {f"large-{number}" for number in range(8)}
    assert set(many[names.KEY_SIZES]) == {702}
    assert list(secret[names.KEY_NAMES]) == ["_other_", "_other_", "_other_", "model.weight_1"]
    assert "content" not in str(many)
    assert names.KEY_NAMES not in none


def test_removals_say_what_they_gave_back(spans):
    """Delete and retention: the stored bytes of what they removed."""
    checkpointer = Checkpointer("memory://", keep_last=1)
    first = checkpointer.save("run-1", STATE)
    second = checkpointer.save("run-1", STATE)
    assert checkpointer.delete("run-1", second.id) == second
    prune, delete = (next(span.attributes for span in spans() if span.name == f"checkpoint.{name}") for name in ("prune", "delete"))
    assert (prune[names.COUNT], prune[names.SIZE_FREED]) == (1, first.stored_size)
    assert delete[names.SIZE_FREED] == second.stored_size


def test_a_restore_links_to_its_save(watch, spans, tmp_path):
    """N3: across observations, as across processes, a restore points to the save it came from and says how old it is."""
    Checkpointer(tmp_path / "ckpt").save("run-1", STATE, step=3)
    Checkpointer(tmp_path / "ckpt").restore("run-1")
    save, restore = (next(span for span in spans() if span.name == f"checkpoint.{name}") for name in ("save", "restore"))
    assert save.trace_id != restore.trace_id
    assert [(link.trace_id, link.span_id) for link in restore.links] == [(save.trace_id, save.span_id)]
    assert (restore.attributes[names.SOURCE_TRACE], restore.attributes[names.SOURCE_SPAN]) == (save.trace_id, save.span_id)
    assert 0 <= restore.attributes[names.SOURCE_AGE] < 3600
    assert (restore.attributes[names.STEP], restore.attributes[names.STEPS_SINCE]) == (3, 0)


def test_failures_are_classified(spans):
    """L9, L10: what failed, in which phase, of which class and code, whether to try again, with the exception event."""
    checkpointer = Checkpointer("memory://")
    with pytest.raises(SerializationError):
        checkpointer.save("run-1", {"socket": object()})
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.load("run-1")
    save, load = (next(span for span in spans() if span.name == f"checkpoint.{name}") for name in ("save", "load"))
    assert save.status == load.status == "error"
    assert (save.attributes[names.ERROR_CLASS], save.attributes[names.ERROR_PHASE]) == ("serialization", "serialize")
    assert (load.attributes[names.ERROR_CODE], load.attributes[names.ERROR_RETRYABLE]) == ("not_found.checkpoint", False)
    assert [event.name for event in save.events] == ["exception"]
    assert save.events[0].attributes["exception.type"] == "ckpt_observe.errors.SerializationError"


def test_patched_functions_work_in_a_spawn_pool(watch):
    """A patched function pickles, and a spawned process that gets it can call it."""
    assert pickle.loads(pickle.dumps(hooks.gather)) is hooks.gather
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(hooks.gather) == {}


def test_unsampled_parents_are_kept(spans):
    """Under a parent that is not sampled nothing is recorded, and the save works."""
    unsampled = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(unsampled)):
        info = Checkpointer("memory://").save("run-1", STATE)
    with ckpt_observe.checkpoint("list"):
        pass
    assert info.serialized_size > 0
    assert [span.name for span in spans()] == ["checkpoint.list"]
