"""What checkpoints tell of an agent's life, in OpenTelemetry's draft words: span events on saves and restores that went well.

| operation | event |
| --- | --- |
| `save` | `gen_ai.agent.checkpointed` |
| `save` with `checkpoint.status` `paused` | also `gen_ai.agent.paused` |
| `restore` | `gen_ai.agent.resumed` |

The draft has them as log records; here they are on the span, for a span is what we have. Off unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import genai
from ckpt_observe.span import Event


class Lifecycle:
    """`on` is set by `observe()`, from the settings of the process that delivers."""

    def __init__(self) -> None:
        self.on = False

    def events(self, attributes: Mapping[str, Any], ended: int) -> tuple[Event, ...]:
        """Those of an operation with these attributes, which ended at that Unix nanosecond."""
        if not self.on or attributes.get(names.OUTCOME) != "ok":
            return ()
        return tuple(Event(name, ended, {key: each for key, each in told.items() if each is not None}) for name, told in _told(attributes))


def _told(attributes: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    execution = {genai.EXECUTION_ID: attributes.get(names.TASK_ID)}
    checkpoint = attributes.get(names.ID)
    operation = attributes.get(names.OPERATION)
    if operation == "save":
        yield genai.CHECKPOINTED, {**execution, genai.CHECKPOINT_ID: checkpoint}
        if attributes.get(names.STATUS) == genai.PAUSED_STATUS:
            yield genai.PAUSED, execution
    elif operation == "restore":
        yield genai.RESUMED, {**execution, genai.RESUMED_FROM_TYPE: genai.FROM_CHECKPOINT, genai.RESUMED_FROM_ID: checkpoint}


lifecycle = Lifecycle()
