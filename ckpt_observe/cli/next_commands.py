"""The commands that other commands suggest next, in the same words everywhere."""

from __future__ import annotations

from typing import Final

from ckpt_observe.query import WaitingJournal

SEND_NOW: Final = "to send them now, run: ckpt-observe deliver"
"""About records that wait. It needs the settings of the program that recorded them."""
TEST_SERVERS: Final = "to test the servers, run: ckpt-observe doctor"
"""About a server that did not receive records."""
START_DAEMON: Final = "start `ckpt-observe daemon`, or run `ckpt-observe deliver` with CKPT_OBSERVE_DELIVERY=daemon and its exporters"
"""About records that only a daemon sends."""


def how_to_deliver(journal: WaitingJournal) -> str:
    """Return what sends the records of a dead process.

    `deliver` refuses those that wait for a daemon or for another server than configured, and cannot read damaged ones.
    """
    if journal.problem:
        return "keep a copy of it"
    return START_DAEMON if journal.is_for_daemon else "run `ckpt-observe deliver` with the settings of the program"
