"""The commands that other commands suggest next, in the same words everywhere."""

from __future__ import annotations

from typing import Final

SEND_NOW: Final = "to send them now, run: ckpt-observe deliver"
"""About records that wait. It needs the settings of the program that recorded them."""
TEST_SERVERS: Final = "to test the servers, run: ckpt-observe doctor"
"""About a server that did not receive records."""
