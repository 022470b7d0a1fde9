"""The sentences of `ckpt-observe why`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt_observe.explain import Evidence, Explainer, ProgramFailure, explain
from ckpt_observe.explain.comparison import MIN_COUNT, SLOW_PHASES
from ckpt_observe.explain.effects import EFFECTS
from ckpt_observe.query import RUNNING, Trace, TraceSummary, open_traces
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.semconv.values import ERROR_CODES, OPERATIONS, OUTCOMES, PHASES
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.testing.operations import SECOND, make_operation
from ckpt_observe.testing.spans import START_UNIX_NANO

NOW = START_UNIX_NANO + 1000 * SECOND
USUAL = [
    make_operation(number, phases={"serialize": 0.1, "write": 0.4}, attributes={names.SIZE_STORED: 1000}) for number in range(100, 120)
]


def sentences(operation, **evidence):
    """The text of an explanation by topic."""
    explanation = explain(operation, Evidence(now_unix_nano=NOW, **evidence))
    texts = {}
    for sentence in explanation.sentences:
        texts[sentence.topic] = f"{texts.get(sentence.topic, '')} {sentence.text}".strip()
    return texts


def failed_save(**attributes):
    code = attributes.get(names.ERROR_CODE, "storage.no_space")
    values = {names.STEP: 4, names.ERROR_CODE: code, names.ERROR_CLASS: ERROR_CODES[code].error_class, names.ERROR_PHASE: "write"}
    return make_operation(outcome="error", exception="disk full", attributes={**values, **attributes})


def test_failure_names_phase_cause_and_advice():
    """A failed save is explained: step, phase and what is done in it, class, exception, what to do."""
    texts = sentences(failed_save(**{names.ERROR_PATH: "messages[3]", names.ERROR_CAUSE: "TypeError", names.ERROR_RETRYABLE: False}))
    assert texts["what"].startswith("The save of step 4 of agent (run run-1), which began at ")
    assert "failed in write (write the bytes to the store and make them durable) after 100 ms" in texts["what"]
    assert "The file system is full (storage.no_space, class capacity)." in texts["cause"]
    assert "The exception was OSError: disk full, caused by TypeError." in texts["cause"]
    assert "messages[3]" in texts["cause"]
    assert texts["advice"].startswith(ADVICE["storage.no_space"])
    assert "does not help" in texts["advice"]
    assert "process 42 of test on box" in texts["where"]


@pytest.mark.parametrize(
    ("code", "outcome"), [("unknown.exception", "error"), ("interrupted.process_died", "interrupted"), ("cancelled.requested", "cancelled")]
)
def test_advice_does_not_judge_a_repetition_of_which_nothing_is_known(code, outcome):
    """That the next call fails, too, is known of some errors. It is not known of new exceptions, kills and cancellations."""
    attributes = {names.ERROR_CODE: code, names.ERROR_CLASS: ERROR_CODES[code].error_class, names.ERROR_RETRYABLE: False}
    assert sentences(make_operation(outcome=outcome, attributes=attributes))["advice"] == ADVICE[code]


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_error_code_is_explained(code):
    """Each code of the table has a cause and advice; nothing is said twice."""
    texts = sentences(failed_save(**{names.ERROR_CODE: code}))
    assert code in texts["cause"]
    assert ADVICE[code] in texts["advice"]
    assert texts["effect"].startswith("This checkpoint was not saved.")


def test_tables_are_complete():
    """Every phase has advice for slowness, and every operation an effect."""
    assert set(SLOW_PHASES) == set(PHASES)
    assert set(OPERATIONS) | {"task"} == set(EFFECTS)


def test_failure_names_its_checkpoint():
    """A failed load without a step can be told from others by the ID of its checkpoint."""
    save = failed_save(**{names.ID: "step-9"})
    assert f". Checkpoint step-9, trace {save.trace_id}, span {save.span_id}." in sentences(save)["where"]
    assert f". Trace {save.trace_id}, span {save.span_id}." in sentences(failed_save())["where"]


def test_impact_of_the_library_replaces_the_general_one():
    """What the library says about the consequences is used, as a sentence."""
    texts = sentences(failed_save(**{names.ERROR_IMPACT: "the file that was there before is lost", names.ERROR_RECOVERY: "retried twice"}))
    assert texts["effect"].startswith("The file that was there before is lost. To recover, the program did this: retried twice.")


def test_interrupted_save_says_where_to_continue():
    """A killed process: its phase and memory, what its save means, and the newest good checkpoint with ID, step and place."""
    save = make_operation(7, start=-60, attributes={names.ID: "ckpt-3", names.STEP: 3, names.LOCATION: "file:///data"})
    killed = make_operation(
        outcome="interrupted",
        attributes={names.STEP: 4, names.ERROR_PHASE: "write", names.ERROR_CODE: "interrupted.process_died", names.MEMORY_PEAK: 3 * 10**9},
    )
    texts = sentences(killed, last_good_save=save)
    assert "was interrupted in write" in texts["what"]
    assert "process 42 died" in texts["what"]
    assert "Its process had used up to 3.0 GB of memory." in texts["cause"]
    assert "newest good save (step 3): checkpoint ckpt-3, saved 17m 40s ago" in texts["restore"]
    assert "in file:///data" in texts["restore"]
    assert "No later save of this run succeeded." in texts["effect"]


def test_without_a_good_save_nothing_is_promised():
    """If no save is recorded, the explanation says so."""
    assert "no successful save of this run" in sentences(failed_save())["restore"]


@pytest.mark.parametrize(
    ("failures", "success", "text"),
    [
        (0, True, "A later save of this run (step 5) succeeded, 9.9 s after this one."),
        (1, True, "1 more save of this run failed, then a later save of this run (step 5) succeeded"),
        (2, False, "Since then 2 more saves of this run failed, and none succeeded."),
    ],
)
def test_what_came_later(failures, success, text):
    """The explanation says whether a later save made up for the failure."""
    later = make_operation(9, start=9.9, attributes={names.STEP: 5})
    assert text in sentences(failed_save(), next_success=later if success else None, failures_since=failures)["effect"]


def test_slow_save_names_the_phase():
    """A save that took longer than usual: by how much, in which phase, and that its size is not the reason."""
    slow = make_operation(phases={"serialize": 0.1, "write": 4.4}, attributes={names.SIZE_STORED: 1010, names.CPU_TIME: 0.09})
    explanation = explain(slow, Evidence(now_unix_nano=NOW, comparable=USUAL))
    text = " ".join(sentence.text for sentence in explanation.sentences)
    assert explanation.is_slow
    assert "That is 9.0 times as long as usual: the usual time is 500 ms (median of 20 successful saves of agent)." in text
    assert "Most of the difference is in write: 4.4 s instead of 400 ms." in text
    assert "Its size is not the reason" in text
    assert "used the CPU for 2% of the time" in text
    assert SLOW_PHASES["write"] in text


def test_large_save_explains_itself():
    """A save that is slow because it is large: the size is named, and a busy CPU."""
    slow = make_operation(phases={"serialize": 4.0, "write": 0.5}, attributes={names.SIZE_STORED: 8000, names.CPU_TIME: 4.2})
    text = sentences(slow, comparable=USUAL)["usual"]
    assert "It has 8.0 kB, which is 8.0 times the usual size (1.0 kB)." in text
    assert "it computed, and did not wait" in text


def test_usual_save_is_called_usual():
    """A save within the usual range is not blamed."""
    usual = make_operation(phases={"serialize": 0.1, "write": 0.45})
    explanation = explain(usual, Evidence(now_unix_nano=NOW, comparable=USUAL))
    assert not explanation.is_slow
    assert "That is not unusual" in explanation.sentences[1].text


@pytest.mark.parametrize("comparable", [[], USUAL], ids=["nothing to compare with", "as slow as usual"])
def test_straggler_is_named(comparable):
    """A distributed save names the rank for which it waited, also if that is usual, or if it is not known what is usual."""
    straggler = {names.STRAGGLER_RANK: 3, names.STRAGGLER_PHASE: "write", names.STRAGGLER_DELAY: 1.5}
    save = make_operation(phases={"serialize": 0.1, "write": 0.4}, attributes=straggler)
    text = "The save waited for rank 3, which was slower than the other ranks by 1.5 s in write."
    assert text in sentences(save, comparable=comparable)["usual"]
    assert "waited for rank" not in sentences(make_operation(), comparable=comparable)["usual"]


def test_place_of_a_rank():
    """The place names process, program and host, and which rank the process was."""
    resource = {"service.name": "train.py", "host.name": "node-7", "process.pid": 42}
    save = make_operation(attributes={names.RANK: 1, names.WORLD_SIZE: 2}, resource=resource)
    assert sentences(save)["where"].startswith("It ran in process 42 of train.py on node-7, rank 1 of 2")


def test_save_that_waited_is_selected(tmp_path):
    """Of a trace in which nothing failed, the save of the coordinator is explained, although another rank took longer."""
    coordinator = make_operation(1, attributes={names.STRAGGLER_RANK: 1}, phases={"write": 1.0})
    rank = make_operation(2, phases={"write": 2.0})
    trace = Trace(summary=TraceSummary("a" * 32, "save", 0, 0, 0, 2, 0, 0, 0), operations=(coordinator, rank))
    with open_traces(tmp_path) as traces:
        assert Explainer(traces, NOW).select(trace) == [coordinator]


def test_too_few_to_compare():
    """With fewer than five other saves, the explanation says that it does not know."""
    assert "is not known what is usual: 4 other" in sentences(make_operation(), comparable=USUAL[: MIN_COUNT - 1])["usual"]


def test_hanging_save():
    """A save that has been running for longer than usual: since when, in which phase, and how to look into its process."""
    hanging = make_operation(outcome=RUNNING, phases={"serialize": 0.1, "write": 0.0}, start=760)
    texts = sentences(hanging, comparable=USUAL, last_good_save=USUAL[0])
    assert "has been running for 4m 00s" in texts["what"]
    assert "is now in write" in texts["what"]
    assert "480 times as long as usual" in texts["usual"]
    assert "py-spy dump --pid 42" in texts["advice"]
    assert "can continue from" in texts["restore"]


def test_failures_of_other_tasks_with_the_same_code():
    """If other tasks fail with the same code at the same time, the cause is outside the program."""
    other = [make_operation(5, outcome="error", task="other", attributes={names.ERROR_CODE: "storage.no_space"})] * 3
    assert sentences(failed_save(), nearby_failures=other)["nearby"] == (
        "Within 5 minutes 3 other operations failed: save of other: storage.no_space (3 times)."
        " All have the same error code, so the cause is probably outside this program."
    )
    assert sentences(failed_save())["nearby"] == "Nothing else failed within 5 minutes."


@pytest.mark.parametrize(("tasks", "end"), [(5, "; 1 more kind."), (6, "; 2 more kinds.")])
def test_many_kinds_of_failures(tasks, end):
    """Four kinds of other failures are named, and the rest is counted."""
    other = [make_operation(5, outcome="error", task=f"other-{number}") for number in range(tasks)]
    assert sentences(failed_save(), nearby_failures=other)["nearby"].endswith(end)


@pytest.mark.parametrize(
    ("operation", "steps", "text"),
    [
        ("restore", 2, "The checkpoint was 1m 30s old, and 2 steps must be repeated."),
        ("load", 1, "The checkpoint was 1m 30s old. If the run continues from it, it repeats 1 step."),
        ("load", 0, "The checkpoint was 1m 30s old."),
    ],
)
def test_read_says_what_was_lost(operation, steps, text):
    """How old the state is, and how many steps are repeated. A load may only look at an earlier state, such as that of an agent."""
    read = make_operation(name=operation, attributes={names.SOURCE_AGE: 90.0, names.STEPS_SINCE: steps})
    assert text in sentences(read)["effect"]


@pytest.mark.parametrize("value", [None, "x" * 5000, -1, 1e308, [], [1, "a"], {"a": 1}, True, "\x1b[2J<script>"], ids=repr)
def test_any_value_of_any_attribute(value):
    """A program can set every attribute to anything: the explanation never fails."""
    attributes = dict.fromkeys(ATTRIBUTES, value)
    for outcome in (*OUTCOMES, RUNNING, "strange"):
        operation = make_operation(outcome=outcome, attributes={**attributes, names.OUTCOME: outcome}, resource={"process.pid": value})
        assert sentences(operation, comparable=[operation] * 6, last_good_save=operation, next_success=operation)["what"]


def test_advice_is_not_repeated():
    """Errors of the core contain the advice for their code: the explanation gives it once."""
    advice = ADVICE["storage.no_space"]
    texts = sentences(make_operation(outcome="error", exception=f"disk full. {advice}", attributes={names.ERROR_CODE: "storage.no_space"}))
    assert "The exception was OSError: disk full." in texts["cause"]
    assert advice not in texts["cause"]
    assert texts["advice"].count(advice) == 1


def make_task(**attributes):
    task = make_operation(
        name="agent", outcome="error", exception="no such document", attributes={names.ERROR_CODE: "unknown.exception", **attributes}
    )
    return replace(task, kind="task", parent_span_id="")


@pytest.mark.parametrize(("node", "place"), [("search", "the node search"), (None, "other code")])
def test_failure_of_the_program_is_not_one_of_checkpoints(node, place):
    """A task that failed although no operation in it did: the program is to be corrected, not the error tables."""
    texts = sentences(make_task(), program_failure=ProgramFailure(node))
    assert texts["cause"] == (
        f"No checkpoint operation of the task failed; the exception came from {place}. The exception was OSError: no such document."
    )
    assert texts["advice"] == "Correct what the exception is about, then continue the run."
    assert "Please report its type" in sentences(make_task())["advice"]


def test_known_failure_of_the_program():
    """The code of the error says what it means, such as too many steps of a graph."""
    task = make_task(**{names.ERROR_CODE: "configuration.invalid"})
    texts = sentences(task, program_failure=ProgramFailure())
    assert "configuration.invalid" in texts["cause"]
    assert ADVICE["configuration.invalid"] in texts["advice"]


@pytest.mark.parametrize("outcome", ["error", "interrupted", "cancelled"])
def test_task_that_failed_without_a_failed_operation_is_selected(tmp_path, outcome):
    """Of a trace in which only the tasks failed, the innermost one is explained, and not an operation that succeeded."""
    outer = replace(make_operation(1, "outer", outcome=outcome), kind="task")
    inner = replace(make_operation(2, "inner", outcome=outcome), kind="task", parent_span_id=outer.span_id)
    save = replace(make_operation(3, phases={"write": 2.0}), parent_span_id=inner.span_id)
    summary = TraceSummary("a" * 32, "task outer", 0, 0, 0, 3, 0, 0, 0)
    with open_traces(tmp_path) as traces:
        select = Explainer(traces, NOW).select
        assert select(Trace(summary=summary, operations=(outer, inner, save))) == [inner]
        failed = replace(save, outcome=outcome)
        assert select(Trace(summary=summary, operations=(outer, inner, failed))) == [failed]
