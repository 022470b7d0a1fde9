"""The observed reference core: operations, phases, their attributes, and the link from a restore to its save."""

from __future__ import annotations

import gzip
import multiprocessing
import pickle

import msgspec
import pytest
from opentelemetry import trace

import ckpt_observe
from ckpt_observe.core import Checkpointer, Query, ciphers, hooks
from ckpt_observe.core.background import BackgroundCheckpointer
from ckpt_observe.core.retention import KeepLast
from ckpt_observe.core.runner import Done, Graph, RunSettings, resume_graph, run_agent, run_graph
from ckpt_observe.core.runner.triggers import EverySteps
from ckpt_observe.core.workspace import Workspace
from ckpt_observe.errors import CheckpointNotFoundError, IntegrityError, LocationError, SerializationError
from ckpt_observe.instrument import reference_attributes
from ckpt_observe.record.recorder import recorder
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
    """A function that returns all spans recorded so far, oldest trace first."""

    def read():
        assert watch.flush(timeout=30)
        with TraceReader(watch.settings.dir / FILENAME) as reader:
            return [span for trace in reversed(reader.newest()) for span in reader.spans(trace.trace_id)]

    return read


def test_every_operation_and_phase(spans, tmp_path):
    """save, load, restore, list, delete, verify and prune each have a span, with exactly the phases that ran."""
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
    save_phases = ["serialize", "compress", "digest", "write", "validate", "retain"]
    load_phases = ["read", "read", "validate", "decompress", "deserialize"]
    assert outline(spans()).splitlines() == [
        "task train",
        *_operation("save", *save_phases),
        *_operation("save", *save_phases),
        "      checkpoint.prune",
        "        checkpoint.remove",
        *_operation("load", *load_phases),
        *_operation("restore", *load_phases, "apply"),
        *_operation("verify", "read", *load_phases[1:]),
        *_operation("list", "read"),
        *_operation("list", "read"),
        *_operation("delete", "read", "remove"),
    ]


def test_runs_are_tasks(spans, tmp_path):
    """A run of an agent or graph is a task that contains its checkpoints, unless the program runs it inside a task of its own."""
    checkpointer = Checkpointer(tmp_path / "ckpt")
    run_agent("writer", lambda state, _session: Done(state), 1, checkpointer)
    graph = Graph(nodes={"a": lambda _state: {"n": 1}}, edges={}, entry="a", exits=frozenset({"a"}))
    with pytest.raises(CheckpointNotFoundError):
        resume_graph(graph, "run-7", checkpointer)
    with ckpt_observe.task("program"):
        run_graph(graph, {}, checkpointer, run_id="run-8", settings=RunSettings(trigger=EverySteps(1)))
    tasks = [span for span in spans() if span.name.startswith("task ")]
    assert [(span.name, span.attributes.get(names.TASK_ID)) for span in tasks] == [
        ("task writer", "writer"),
        ("task graph", "run-7"),
        ("task program", None),
    ]
    children = {task.name: [span.name for span in spans() if span.parent_span_id == task.span_id] for task in tasks}
    assert children["task writer"] == ["checkpoint.save"]
    assert children["task program"][0] == "checkpoint.save"


def test_error_of_an_encrypted_run_is_not_quoted(spans):
    """With encryption, the error message of a failed step is not recorded, because it may quote the state."""
    pytest.importorskip("cryptography")

    def fail(_state, _session):
        raise ValueError("patient Ann")

    for cipher in (ciphers.AeadCipher(bytes(32)), None):
        with pytest.raises(ValueError):
            run_agent("agent", fail, 1, Checkpointer("memory://", encryption=cipher))
    encrypted_run, plain_run = (str(span.events) for span in spans() if span.name == "task agent")
    assert "ValueError" in encrypted_run
    assert "Ann" not in encrypted_run
    assert "Ann" in plain_run


def test_keys_queries_and_workspaces(spans, tmp_path):
    """Reading one key is recorded as a load, a query as a list, and snapshots of a directory as save and restore."""
    checkpointer = Checkpointer(tmp_path / "ckpt")
    checkpointer.save("run-1", {"large": "x" * 5000, "small": 1}, id="one")
    assert checkpointer.open("run-1")["small"] == 1
    assert checkpointer.open("run-1").get("missing") is None  # not recorded as a failed load
    assert len(checkpointer.find(Query(task="run-1"))) == 1
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content")
    workspace = Workspace(tmp_path / "snapshots", "run-1")
    workspace.save(tmp_path / "work", "one")
    workspace.restore(tmp_path / "work", id="one")
    _, load, query, save, restore = [span for span in spans() if span.attributes.get(names.OPERATION)]
    assert [span.name for span in (load, query, save, restore)] == [
        "checkpoint.load",
        "checkpoint.list",
        "checkpoint.save",
        "checkpoint.restore",
    ]
    assert {span.attributes[names.TASK_ID] for span in (load, query, save, restore)} == {"run-1"}
    assert {span.attributes[names.ID] for span in (load, save, restore)} == {"one"}
    assert (query.attributes[names.COUNT], save.attributes[names.STORE]) == (1, "git")
    phases = {span.attributes[names.PHASE]: span for span in spans() if span.parent_span_id == load.span_id}
    assert list(phases) == ["read", "validate", "deserialize"]
    assert phases["read"].attributes[names.PHASE_BYTES_OUT] == 1


@pytest.mark.parametrize("is_sampled", [True, False])
def test_result_of_an_unrecorded_save_is_not_looked_at(watch, tmp_path, monkeypatch, is_sampled):
    """In a trace that is not sampled, without metrics, the sizes of keys are not read: 200 keys take 30 µs. Also of a save in a thread."""
    sizes = []
    monkeypatch.setattr(reference_attributes, "size_attributes", lambda keys: sizes.append(keys) or {})
    monkeypatch.setattr(recorder, "samples", lambda trace_id, parent_sampled: is_sampled)
    Checkpointer(tmp_path / "store").save("run-1", STATE)
    with BackgroundCheckpointer(Checkpointer(tmp_path / "other")) as background:
        background.save("run-1", STATE).result(60)
    assert bool(sizes) == is_sampled


def _operation(name, *phases):
    return [f"  checkpoint.{name}", *(f"    checkpoint.{phase}" for phase in phases)]


def test_damage_and_altered_keys_are_recorded(spans, tmp_path, monkeypatch):
    """A load and a verify record keys that were restored as another type, and damaged checkpoints that were skipped."""
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


def test_everything_damaged_is_corruption(spans, tmp_path):
    """If all checkpoints are damaged, a load with fallback is recorded as damage of that many, with the newest, and not as not found."""
    checkpointer = Checkpointer(tmp_path / "ckpt", fallback=True)
    for id in "ab":
        checkpointer.save("run-1", STATE, id=id)
        (tmp_path / "ckpt" / "run-1" / f"{id}.ckpt").write_bytes(b"damaged")
    with pytest.raises(IntegrityError):
        checkpointer.load("run-1")
    [load] = [span for span in spans() if span.name == "checkpoint.load"]
    assert (load.attributes[names.ERROR_CLASS], load.attributes[names.DAMAGED_COUNT], load.attributes[names.ID]) == ("integrity", 2, "b")


def test_attributes_of_a_save(spans):
    """A save has sizes, ratio, format, codec, digest, state structure, task and throughput, with the types that semconv declares."""
    with ckpt_observe.task("train", id="run-1", user="u", session="s"):
        info = Checkpointer("memory://", format="msgpack", compression="zstd").save("run-1", STATE, step=3, status="done")
    save = next(span for span in spans() if span.name == "checkpoint.save")
    attributes = save.attributes
    assert attributes[names.ID] == info.id
    assert (attributes[names.SYSTEM], attributes[names.STORE], attributes[names.FORMAT], attributes[names.CODEC]) == (
        "reference",
        "memory",
        "msgpack",
        "zstd",
    )
    assert (attributes[names.TASK_NAME], attributes[names.TASK_ID], attributes[names.USER_ID], attributes[names.SESSION_ID]) == (
        "train",
        "run-1",
        "u",
        "s",
    )
    assert (attributes[names.SIZE_SERIALIZED], attributes[names.SIZE_STORED]) == (info.serialized_size, info.stored_size)
    assert attributes[names.SIZE_OVERHEAD] == info.header_size
    assert (attributes[names.STEP], attributes[names.STATUS], attributes[names.DIGEST]) == (3, "done", info.digest)
    assert (attributes[names.STATE_TYPE], attributes[names.STATE_KEYS], attributes[names.STATE_DEPTH]) == ("dict", 2, 3)
    assert dict(zip(attributes[names.KEY_NAMES], attributes[names.KEY_SIZES], strict=True)) == {
        name: key.size for name, key in info.keys.items()
    }
    assert attributes[names.THROUGHPUT] > 0
    kinds = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": list, "int[]": list}
    assert all(isinstance(value, kinds[names.ATTRIBUTES[name].kind]) for name, value in attributes.items())


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_ratio_is_what_the_codec_achieved(spans, is_encrypted):
    """The ratio is the same for a save and a load, and neither header nor cipher count. Control: a save without a codec has none."""
    state = {"words": ["a", "b", "c"] * 30}
    if is_encrypted:
        pytest.importorskip("cryptography")
    cipher = ciphers.AeadCipher(b"k" * 32) if is_encrypted else None
    checkpointer = Checkpointer("memory://", compression="gzip", encryption=cipher)
    checkpointer.save("run-1", state)
    checkpointer.load("run-1")
    Checkpointer("memory://").save("run-1", state)
    data = msgspec.json.encode(state)
    achieved = round(len(data) / len(gzip.compress(data, 6, mtime=0)), 3)
    save, load, plain = (span.attributes for span in spans() if names.OPERATION in span.attributes)
    assert achieved > 2
    assert (save[names.RATIO], load[names.RATIO]) == (achieved, achieved)
    assert save[names.SIZE_SERIALIZED] / save[names.SIZE_STORED] < achieved
    assert names.RATIO not in plain


def test_recorded_keys_are_few_and_redacted(spans):
    """The largest keys are recorded with their sizes; a key that may be a secret or a person is replaced, and no value is recorded."""
    state = {**{f"small-{number}": 1 for number in range(50)}, **{f"large-{number}": "content" * 100 for number in range(8)}}
    checkpointer = Checkpointer("memory://")
    checkpointer.save("run-1", state)
    checkpointer.save("run-1", {"password=hunter2": 1, "ada@example.org": 2, "Ada Lovelace": 3, "model.weight_1": 4})
    checkpointer.save("run-1", ["no", "keys"])
    many_keys, secret_keys, no_keys = (span.attributes for span in spans() if span.name == "checkpoint.save")
    assert set(many_keys[names.KEY_NAMES]) == {f"large-{number}" for number in range(8)}
    assert set(many_keys[names.KEY_SIZES]) == {702}
    assert list(secret_keys[names.KEY_NAMES]) == ["_other_", "_other_", "_other_", "model.weight_1"]
    assert "content" not in str(many_keys)
    assert names.KEY_NAMES not in no_keys


def test_removals_record_the_bytes_they_freed(spans):
    """A delete and a prune record the stored bytes of the checkpoints they removed."""
    checkpointer = Checkpointer("memory://", keep_last=1)
    first = checkpointer.save("run-1", STATE)
    second = checkpointer.save("run-1", STATE)
    assert checkpointer.delete("run-1", second.id) == second
    prune, delete = (next(span.attributes for span in spans() if span.name == f"checkpoint.{name}") for name in ("prune", "delete"))
    assert (prune[names.COUNT], prune[names.SIZE_FREED]) == (1, first.stored_size)
    assert delete[names.SIZE_FREED] == second.stored_size


def test_a_restore_links_to_its_save(watch, spans, tmp_path):
    """A restore in another trace, as in another process, links to its save and records the age of the checkpoint."""
    Checkpointer(tmp_path / "ckpt").save("run-1", STATE, step=3)
    Checkpointer(tmp_path / "ckpt").restore("run-1")
    save, restore = (next(span for span in spans() if span.name == f"checkpoint.{name}") for name in ("save", "restore"))
    assert save.trace_id != restore.trace_id
    assert [(link.trace_id, link.span_id) for link in restore.links] == [(save.trace_id, save.span_id)]
    assert (restore.attributes[names.SOURCE_TRACE], restore.attributes[names.SOURCE_SPAN]) == (save.trace_id, save.span_id)
    assert 0 <= restore.attributes[names.SOURCE_AGE] < 3600
    assert (restore.attributes[names.STEP], restore.attributes[names.STEPS_SINCE]) == (3, 0)


def test_failures_are_classified(spans):
    """A failure is recorded with its phase, class, code, whether a retry may help, and the exception event."""
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


def test_failure_has_cause_and_impact(spans, tmp_path):
    """A failed save has the type of the operating system's error, and an impact that is true for a save; a failed load one for a load."""
    (tmp_path / "file").write_text("")
    checkpointer = Checkpointer(tmp_path / "file" / "ckpt")
    for call in (lambda: checkpointer.save("run-1", STATE), lambda: checkpointer.load("run-1")):
        with pytest.raises(LocationError):
            call()
    save, load = (span.attributes for span in spans() if names.OPERATION in span.attributes)
    assert save[names.ERROR_CAUSE] == load[names.ERROR_CAUSE] == "NotADirectoryError"
    assert save[names.ERROR_IMPACT].startswith("this checkpoint was not saved")
    assert load[names.ERROR_IMPACT].startswith("nothing was loaded")


def test_hooks_are_phases(spans):
    """Hooks of the program are a phase of their own. Those called within a phase, for each removed checkpoint, are part of it."""
    checkpointer = Checkpointer("memory://", hooks=[lambda _: None])
    checkpointer.save("run-1", STATE)
    with checkpointer.batch() as batch:
        batch.save("run-1", STATE)
        batch.save("run-1", STATE)
    checkpointer.retention = KeepLast(1)
    checkpointer.prune("run-1")
    assert outline(spans()).splitlines() == [
        line.removeprefix("  ")
        for line in (
            *_operation("save", "hook", "serialize", "digest", "write", "validate", "hook"),
            *_operation("save", "hook", "write", "validate", "validate", "hook"),
            *_operation("prune", "read", "remove"),
        )
    ]


def test_failing_hook_is_an_event(spans):
    """Each exception of a hook is an event of the operation, which succeeds and has no exception event."""

    def broken(_event):
        raise ValueError("hook failed")

    Checkpointer("memory://", hooks=[broken]).save("run-1", STATE)
    [save] = [span for span in spans() if span.name == "checkpoint.save"]
    assert (save.status, save.attributes[names.OUTCOME]) == ("ok", "ok")
    assert [event.name for event in save.events] == ["checkpoint.hook_failed"] * 2
    attributes = save.events[0].attributes
    assert attributes[names.HOOK].endswith("broken")
    assert (attributes["exception.type"], attributes["exception.message"]) == ("ValueError", "hook failed")


def test_patched_functions_work_in_a_spawn_pool(watch):
    """A patched function pickles, and a spawned process that gets it can call it."""
    assert pickle.loads(pickle.dumps(hooks.gather)) is hooks.gather
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(hooks.gather) == {}


def test_children_of_unsampled_parents_are_not_recorded(spans):
    """Under an unsampled parent, nothing is recorded and the save works."""
    unsampled = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(unsampled)):
        info = Checkpointer("memory://").save("run-1", STATE)
    with ckpt_observe.checkpoint("list"):
        pass
    assert info.serialized_size > 0
    assert [span.name for span in spans()] == ["checkpoint.list"]
