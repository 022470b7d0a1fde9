"""Agent lifecycle events from a draft of OpenTelemetry (semantic-conventions-genai, pull request 445). None of these names is stable."""

from __future__ import annotations

from typing import Final

CHECKPOINTED: Final = "gen_ai.agent.checkpointed"
PAUSED: Final = "gen_ai.agent.paused"
RESUMED: Final = "gen_ai.agent.resumed"

EXECUTION_ID: Final = "gen_ai.agent.execution.id"
CHECKPOINT_ID: Final = "gen_ai.agent.checkpoint.id"
RESUMED_FROM_TYPE: Final = "gen_ai.agent.resumed_from.type"
RESUMED_FROM_ID: Final = "gen_ai.agent.resumed_from.id"

FROM_CHECKPOINT: Final = "checkpoint"
PAUSED_STATUS: Final = "paused"
"""Value of `checkpoint.status` for a run that waits for a person."""
