"""Sessions that the runner uses: those without a base class, and the example."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

EXAMPLE = Path(__file__).parents[3] / "examples" / "libraries" / "openai_agents_session.py"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_session_without_base_class(observation, how):
    """It is observed from the run on that it is handed to, and its items are those of an unobserved run."""
    items = observation.run("runs.py", how)
    assert items == observation.run("runs.py", how, observed=False)
    spans = observation.spans()
    spans.check_traces()
    assert {span.attributes[names.SAVER] for span in spans.operations()} == {"ListSession"}
    assert sum(span.attributes[names.COUNT] for span in spans.operations("append")) == len(items) == 2
    assert spans.operations("load")


def test_example(observation):
    """Two runs load the session and append four items; the second load finds the first two."""
    observation.run_example(EXAMPLE)
    spans = observation.spans()
    assert [span.attributes[names.COUNT] for span in sorted(spans.operations("load"), key=lambda span: span.start_unix_nano)] == [0, 2]
    assert sum(span.attributes[names.COUNT] for span in spans.operations("append")) == 4
    assert {span.attributes[names.SESSION_ID] for span in spans.operations()} == {"conversation-1"}
