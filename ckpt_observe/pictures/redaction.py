"""What a report leaves out, because a ticket has more readers than a machine: secrets, people, and the home directory.

Secrets are redacted before anything is recorded. Here they are redacted again, because spans may come from other programs and versions.
"""

from __future__ import annotations

import os
from typing import Any, Final
from xml.etree.ElementTree import Element

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.support import secrets
from ckpt_observe.support.secrets import REDACTED, SECRET_NAME

PERSONAL: Final = (names.USER_ID, names.SESSION_ID)
"""Attributes that name a person."""
_OURS: Final = ("style", "meta")
"""Elements whose content is ours."""


def redact_attribute(name: str, value: Any) -> Any:
    """Return the value of an attribute as the report shows it."""
    is_secret = name in PERSONAL or (name not in ATTRIBUTES and SECRET_NAME.search(name) is not None)
    return REDACTED if is_secret else value


def redact_page(page: Element) -> None:
    """Redact every text of a page. It is done at the end and for all elements, so that no part of the report can forget it."""
    home = os.path.expanduser("~")
    for element in page.iter():
        if element.tag in _OURS:
            continue
        if element.text:
            element.text = _redact(element.text, home)
        if element.tail:
            element.tail = _redact(element.tail, home)


def _redact(text: str, home: str) -> str:
    text = secrets.redact(text)
    return text.replace(home, "~") if len(home) > 1 else text
