"""The next observed process removes the pages of a killed one whose state directory was deleted."""

from __future__ import annotations

import shutil

import pytest

from tests.delivery.conftest import until
from tests.delivery.rig import Host, clean_up, environ


@pytest.mark.parametrize("delivery", ["in-process", "daemon"])
def test_next_process_removes_orphaned_pages(state, delivery):
    """A killed program leaves pages; after its state directory was deleted, the next program removes them and keeps its own."""
    pages = state.parent / (state.name + "-pages")
    killed = Host(environ(state, delivery))
    killed.run("save a 1")
    killed.kill()
    clean_up(killed.process)
    [orphan] = pages.iterdir()
    shutil.rmtree(state)
    host = Host(environ(state, delivery))
    host.run("save b 1")
    until(lambda: not orphan.exists())
    assert list(pages.iterdir())
    clean_up(host.process)
