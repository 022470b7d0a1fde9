"""Warnings that are logged once."""

from __future__ import annotations

import logging

from ckpt_observe.support import logs
from ckpt_observe.support.logs import WarningLog, logger


def test_each_key_is_logged_once(caplog):
    """The first message of a key is logged, however later ones differ; without the name of the logger, which formatters add."""
    warnings = WarningLog()
    for number in range(10):
        warnings.warn_once("disk", "full for the %d. time", number)
    warnings.warn_once("network", "no server")
    assert caplog.record_tuples == [
        ("ckpt_observe", logging.WARNING, "full for the 0. time"),
        ("ckpt_observe", logging.WARNING, "no server"),
    ]


def test_a_cleared_key_is_logged_again(caplog):
    """After the condition ended, its next occurrence is news."""
    warnings = WarningLog()
    for _ in range(2):
        warnings.warn_once("disk", "full")
        warnings.clear("disk")
    assert caplog.messages == ["full", "full"]


def test_memory_is_bounded(caplog):
    """Of many keys a thousand are remembered; each is logged."""
    warnings = WarningLog()
    for number in range(3 * logs.MAX_KEYS):
        warnings.warn_once(str(number), "condition %d", number)
    assert len(warnings._keys) <= logs.MAX_KEYS
    assert len(caplog.messages) == 3 * logs.MAX_KEYS


def test_a_broken_handler_of_the_host_program_does_not_raise():
    """Logging must not fail a checkpoint or one of our threads."""

    class Broken(logging.Handler):
        def handle(self, record):
            raise RuntimeError("broken")

    handler = Broken()
    logger.addHandler(handler)
    try:
        WarningLog().warn_once("x", "message")
    finally:
        logger.removeHandler(handler)
