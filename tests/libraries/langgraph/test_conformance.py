"""LangGraph's own conformance suite reports the same with and without us."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.libraries

BASE = ["put", "put_writes", "get_tuple", "list", "delete_thread"]


@pytest.mark.parametrize("kind", ["aiomemory", "aiosqlite", "aiopostgresql", "own"])
def test_report_is_the_same(observation, kind, request):
    """The same tests pass and fail, and the suite detects the same capabilities."""
    place = (
        request.getfixturevalue("postgres_url").partition(":")[2] if kind == "aiopostgresql" else {"aiosqlite": ":memory:"}.get(kind, "")
    )
    bare = observation.run("conformance.py", f"{kind}:{place}", observed=False)
    assert all(bare["results"][name]["detected"] and bare["results"][name]["tests_passed"] for name in BASE)
    assert observation.run("conformance.py", f"{kind}:{place}") == bare
    recorded = {span.attributes["checkpoint.operation"] for span in observation.spans().operations()}
    assert {"save", "append", "load", "list", "delete"} <= recorded


def test_wrapped_inherited_method_is_noticed(observation):
    """Control: the suite takes a method that a subclass only inherits for implemented, if somebody wraps it there."""
    bare = observation.run("conformance.py", "aiomemory:", observed=False)
    broken = observation.run("conformance.py", "aiomemory:", "wrap_inherited", observed=False)
    assert not bare["results"]["prune"]["detected"]
    assert broken["results"]["prune"]["detected"]
    assert broken["results"]["prune"]["tests_failed"] > 0
