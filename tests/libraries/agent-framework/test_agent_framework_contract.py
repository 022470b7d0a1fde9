"""The instrumentor of Microsoft's Agent Framework passes the contract of all instrumentors."""

from importlib.metadata import version

import pytest

from ckpt_observe.instrument.agent_sessions import AgentFrameworkInstrumentor
from ckpt_observe.testing.instrumentors import InstrumentorContract

pytestmark = pytest.mark.libraries

USE = """
import asyncio, tempfile
from agent_framework import FileCheckpointStorage, InMemoryCheckpointStorage, WorkflowCheckpoint
async def use(directory):
    for storage in (InMemoryCheckpointStorage(), FileCheckpointStorage(directory)):
        assert await storage.save(WorkflowCheckpoint("name", "hash", checkpoint_id="a")) == "a"
        assert (await storage.load("a")).workflow_name == "name"
        assert (await storage.get_latest(workflow_name="name")).checkpoint_id == "a"
        assert await storage.delete("a")
with tempfile.TemporaryDirectory() as directory:
    asyncio.run(use(directory))
"""


class TestAgentFramework(InstrumentorContract):
    instrumentor = "ckpt_observe.instrument.agent_sessions:AgentFrameworkInstrumentor"
    use = USE


def test_installed_version_is_supported():
    """The tests run with the version that the instrumentor names."""
    assert version("agent-framework-core") == "1.23.0"
    assert AgentFrameworkInstrumentor.supported == "agent-framework-core>=1.23,<2"
