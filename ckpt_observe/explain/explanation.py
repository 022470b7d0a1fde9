"""The sentences that explain one operation: what happened, why, what to do, what it means for the run, and what else failed near it.

The words come from the tables that also generate the reference: meanings of phases and error codes, and advice per code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ckpt_observe.explain.comparison import SLOW_PHASES, Usual, compare, describe_straggler, is_slow, usual_values
from ckpt_observe.explain.effects import READS, describe_effect, describe_restore_point
from ckpt_observe.explain.wording import describe, describe_phase, exception_text, kind_name
from ckpt_observe.query import RUNNING, ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.support.formatting import format_count, format_duration, format_size, format_time

Topic: TypeAlias = Literal["what", "cause", "advice", "usual", "effect", "restore", "nearby", "where"]
TITLES: Final[dict[Topic, str]] = {
    "what": "What happened",
    "cause": "Cause",
    "advice": "What to do",
    "usual": "Compared",
    "effect": "What it means",
    "restore": "Continue from",
    "nearby": "What else failed",
    "where": "Where",
}
NEARBY_SECONDS: Final = 300
"""Other failures that ended at most this long before or after are mentioned."""
_MAX_NEARBY: Final = 4
FAILURES: Final = ("error", "interrupted", "cancelled")
_UNKNOWN: Final = "unknown.exception"
_WITHOUT_RESTORE: Final = ("list", "prune", "delete")
"""Operations that do not put a run at risk if they fail."""


class Sentence(msgspec.Struct, frozen=True):
    """A part of an explanation."""

    topic: Topic
    text: str


class ProgramFailure(msgspec.Struct, frozen=True):
    """A task failed although none of its operations did."""

    node: str | None = None
    """The node of the graph that raised the exception, if the library says it."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded besides the operation itself."""

    now_unix_nano: int
    comparable: Sequence[ObservedOperation] = ()
    """Successful operations of the same kind and task, to compare with."""
    last_good_save: ObservedOperation | None = None
    """The newest save of the same run that succeeded."""
    next_success: ObservedOperation | None = None
    """The first later operation of the same kind and run that succeeded."""
    failures_since: int = 0
    """Later operations of the same kind and run that failed, until that success."""
    nearby_failures: Sequence[ObservedOperation] = ()
    """Other operations that failed at about the same time, of any program of the state directory."""
    program_failure: ProgramFailure | None = None
    """Of a task that failed although no operation in it did."""


class OperationExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one operation or task, for people and for programs."""

    trace_id: str
    span_id: str
    operation: str
    """`save`, `load`, ... or `task`."""
    task: str
    outcome: str
    """One of the outcomes of docs/semconv.md, or `running`."""
    start_unix_nano: int
    seconds: float
    """Until now if it is running."""
    phase: str | None
    """The phase in which it failed, in which its process died, or which is running."""
    error_class: str | None
    error_code: str | None
    is_slow: bool
    usual: Usual | None
    """What is usual for this kind of operation and task. None if too few are recorded."""
    restore_checkpoint_id: str | None
    """ID of the newest good checkpoint of the run, if one is known."""
    restore_location: str | None
    nearby_failures: int
    sentences: list[Sentence]

    def paragraphs(self) -> dict[str, str]:
        """Return the sentences by the title of their topic."""
        texts: dict[str, list[str]] = {}
        for sentence in self.sentences:
            texts.setdefault(TITLES[sentence.topic], []).append(sentence.text)
        return {title: " ".join(sentences) for title, sentences in texts.items()}


def explain(operation: ObservedOperation, evidence: Evidence) -> OperationExplanation:
    """Return the explanation of an operation or task."""
    usual = usual_values(evidence.comparable, evidence.now_unix_nano)
    seconds = operation.seconds(evidence.now_unix_nano)
    slow = operation.outcome in ("ok", RUNNING) and is_slow(seconds, usual)
    save = evidence.last_good_save
    return OperationExplanation(
        trace_id=operation.trace_id,
        span_id=operation.span_id,
        operation=kind_name(operation),
        task=operation.task_title,
        outcome=operation.outcome,
        start_unix_nano=operation.start_unix_nano,
        seconds=seconds,
        phase=operation.phase,
        error_class=_text(operation.attributes.get(names.ERROR_CLASS)),
        error_code=_text(operation.attributes.get(names.ERROR_CODE)),
        is_slow=slow,
        usual=usual,
        restore_checkpoint_id=save.checkpoint_id if save else None,
        restore_location=_text(save.attributes.get(names.LOCATION)) if save else None,
        nearby_failures=len(evidence.nearby_failures),
        sentences=[Sentence(topic, text) for topic, text in _sentences(operation, evidence, usual, slow=slow)],
    )


def _sentences(operation: ObservedOperation, evidence: Evidence, usual: Usual | None, *, slow: bool) -> Iterator[tuple[Topic, str]]:
    now, has_failed = evidence.now_unix_nano, operation.outcome in FAILURES
    yield "what", _describe_outcome(operation, operation.seconds(now))
    if has_failed:
        yield from (("cause", text) for text in _causes(operation, evidence.program_failure))
        yield from (("advice", text) for text in _advice(operation, evidence.program_failure))
        yield from (("effect", text) for text in describe_effect(operation, evidence.next_success, evidence.failures_since))
    elif operation.outcome != "skipped":
        yield from (("usual", text) for text in compare(operation, usual, len(evidence.comparable), now))
        yield from (("usual", text) for text in describe_straggler(operation))
        yield from (("effect", text) for text in _describe_success(operation))
        if slow and operation.is_running:
            yield "advice", _stuck_advice(operation)
    has_problem = has_failed or (slow and operation.is_running)
    if has_problem and operation.task_id is not None and operation.name not in _WITHOUT_RESTORE:
        yield "restore", describe_restore_point(evidence.last_good_save, now)
    if has_problem or slow:
        yield "nearby", _describe_nearby(operation, evidence.nearby_failures)
    yield "where", _describe_place(operation)


def _describe_outcome(operation: ObservedOperation, seconds: float) -> str:
    what, began, took = describe(operation), format_time(operation.start_unix_nano), format_duration(seconds)
    in_phase = f" in {describe_phase(operation.phase)}" if operation.phase else ""
    match operation.outcome:
        case "interrupted":
            process = "its process" if operation.pid is None else f"process {operation.pid}"
            return f"The {what}, which began at {began}, was interrupted{in_phase}: {process} died (killed or crashed) about {took} later."
        case "cancelled":
            return f"The {what}, which began at {began}, was stopped on purpose{in_phase} after {took}."
        case "skipped":
            return f"The {what} at {began} did nothing, because nothing had to be done."
        case "ok":
            return f"The {what} at {began} succeeded and took {took}."
        case "running":
            return f"The {what} has been running for {took}, since {began}{f', and is now{in_phase}' if in_phase else ''}."
    return f"The {what}, which began at {began}, failed{in_phase} after {took}."


def _causes(operation: ObservedOperation, program_failure: ProgramFailure | None) -> Iterator[str]:
    code = str(operation.attributes.get(names.ERROR_CODE) or "")
    if program_failure is not None:
        place = f"the node {program_failure.node}" if program_failure.node else "other code"
        yield f"No checkpoint operation of the task failed; the exception came from {place}."
    if code in ERROR_CODES and not _is_outside_tables(code, program_failure):
        yield f"{ERROR_CODES[code].meaning.rstrip('.')} ({code}, class {ERROR_CODES[code].error_class})."
    elif program_failure is None and (code or operation.attributes.get(names.ERROR_CLASS)):
        yield f"Its error is {' of class '.join(filter(None, (code, str(operation.attributes.get(names.ERROR_CLASS) or ''))))}."
    exception = exception_text(operation)
    if exception and operation.outcome != "interrupted":  # then the exception is ours, and says the same
        exception = exception.replace(ADVICE.get(code, "\0"), "").rstrip()  # messages of the core contain it
        cause = operation.attributes.get(names.ERROR_CAUSE)
        yield f"The exception was {exception.rstrip('.')}{f', caused by {cause}' if cause else ''}."
    memory = operation.attributes.get(names.MEMORY_PEAK)
    if operation.outcome == "interrupted" and isinstance(memory, int):
        yield f"Its process had used up to {format_size(memory)} of memory."
    if path := operation.attributes.get(names.ERROR_PATH):
        yield f"The value that caused it is {path} in the state."
    ranks: Any = operation.attributes.get(names.ERROR_RANKS)
    if isinstance(ranks, list | tuple) and ranks:
        kinds = operation.attributes.get(names.ERROR_RANK_TYPES)
        kinds = sorted(set(map(str, kinds))) if isinstance(kinds, list | tuple) else []
        with_kinds = f" with {', '.join(kinds)}" if kinds else ""
        yield f"It failed on rank {', '.join(map(str, ranks))}{with_kinds}."


def _advice(operation: ObservedOperation, program_failure: ProgramFailure | None) -> Iterator[str]:
    code = str(operation.attributes.get(names.ERROR_CODE))
    if _is_outside_tables(code, program_failure):
        yield "Correct what the exception is about, then continue the run."
        return
    advice = ADVICE.get(code)
    if advice:
        yield advice
    retryable = operation.attributes.get(names.ERROR_RETRYABLE)
    if operation.outcome != "error" or operation.attributes.get(names.ERROR_CLASS) == "unknown":
        return  # it is not known whether a repetition would help
    if retryable is True:
        yield "The same call may succeed if it is repeated."
    elif retryable is False:
        yield "Repeating the same call does not help before that is done." if advice else "Repeating the same call does not help."


def _is_outside_tables(code: str, program_failure: ProgramFailure | None) -> bool:
    """Return whether the error tables lack the exception on purpose, because it is not about checkpoints."""
    return program_failure is not None and code == _UNKNOWN


def _stuck_advice(operation: ObservedOperation) -> str:
    advice = SLOW_PHASES.get(operation.phase or "", "")
    look = f"To see where its process hangs, run: py-spy dump --pid {operation.pid}" if operation.pid is not None else ""
    return " ".join(filter(None, (advice, look))) or "Look at its process."


def _describe_success(operation: ObservedOperation) -> Iterator[str]:
    """Yield what a successful operation still means for the run: how old a loaded state is, damage, altered keys."""
    if operation.name in READS and operation.attributes.get(names.EXISTS) is False:
        yield "There was no checkpoint to load, so the program starts from the beginning."
    age, steps = operation.attributes.get(names.SOURCE_AGE), operation.attributes.get(names.STEPS_SINCE)
    if isinstance(age, int | float):
        yield f"The checkpoint was {format_duration(age)} old{_describe_lost_steps(operation.name, steps)}."
    if damaged := operation.attributes.get(names.DAMAGED_COUNT):
        yield f"Damaged checkpoints that it found or skipped: {damaged}."
    altered: Any = operation.attributes.get(names.ALTERED_KEYS)
    if isinstance(altered, list | tuple) and altered:
        yield f"These keys differ from what was saved: {', '.join(map(str, altered))}."
    blocked: Any = operation.attributes.get(names.ASYNC_BLOCKED)
    if isinstance(blocked, int | float):
        yield f"It was an async save: the program waited {format_duration(blocked)} of that time."


def _describe_lost_steps(operation: str, steps: Any) -> str:
    if not isinstance(steps, int) or steps <= 0:
        return ""
    count = format_count(steps, "step")
    if operation == "restore":
        return f", and {count} must be repeated"
    return f". If the run continues from it, it repeats {count}"  # a load may only look at it


def _describe_nearby(operation: ObservedOperation, failures: Sequence[ObservedOperation]) -> str:
    minutes = NEARBY_SECONDS // 60
    if not failures:
        return f"Nothing else failed within {minutes} minutes."
    code = operation.attributes.get(names.ERROR_CODE)
    groups = Counter(_describe_failure(each) for each in failures)
    listed = "; ".join(f"{text} ({count} times)" if count > 1 else text for text, count in groups.most_common(_MAX_NEARBY))
    more = f"; {format_count(len(groups) - _MAX_NEARBY, 'more kind')}" if len(groups) > _MAX_NEARBY else ""
    text = f"Within {minutes} minutes {format_count(len(failures), 'other operation')} failed: {listed}{more}."
    same = [each for each in failures if code and each.attributes.get(names.ERROR_CODE) == code]
    if len(same) == len(failures) and len({each.task_title for each in [operation, *same]}) > 1:
        text += " All have the same error code, so the cause is probably outside this program."
    return text


def _describe_failure(operation: ObservedOperation) -> str:
    return f"{kind_name(operation)} of {operation.task_title or '?'}: {operation.attributes.get(names.ERROR_CODE) or operation.outcome}"


def _describe_place(operation: ObservedOperation) -> str:
    host = operation.resource.get("host.name")
    facts = [f"process {operation.pid}" if operation.pid is not None else "", f"of {operation.service}" if operation.service else ""]
    facts.append(f"on {host}" if host else "")
    rank, world = operation.attributes.get(names.RANK), operation.attributes.get(names.WORLD_SIZE)
    place = " ".join(filter(None, facts)) or "a process that is not known"
    if rank is not None:
        place += f", rank {rank}" + (f" of {world}" if world is not None else "")
    store = operation.attributes.get(names.LOCATION) or operation.attributes.get(names.STORE)
    with_store = f", with the store {store}" if store else ""
    verb = "runs" if operation.is_running else "ran"
    trace = f"Checkpoint {operation.checkpoint_id}, trace" if operation.checkpoint_id else "Trace"
    return f"It {verb} in {place}{with_store}. {trace} {operation.trace_id}, span {operation.span_id}."


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
