"""The table of secrets: what each row redacts, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.support import secrets
from tests.support.secret_examples import EXAMPLES, new_chooser

ROOT = Path(__file__).parents[2]


def test_every_row_has_examples():
    """Each row of the table has texts that it redacts and texts that it leaves alone."""
    assert list(EXAMPLES) == [row.name for row in secrets.PATTERNS]
    assert all(forms and harmless for forms, harmless in EXAMPLES.values())


@pytest.mark.parametrize("row", secrets.PATTERNS, ids=lambda row: row.name)
def test_redacted(row):
    """No part of a secret stays, in whatever text it is. The row matches by itself, and redacting twice changes nothing."""
    chooser = new_chooser()
    for form in EXAMPLES[row.name][0] * 20:
        secret, parts = form.fill(chooser)
        for text in (secret, f"cannot open {secret}", f"[{secret}]", f"({secret}) failed", f"x\n{secret}\ny"):
            clean = secrets.redact(text)
            assert not [part for part in parts if part in clean], (text, clean)
            assert secrets.REDACTED in clean
            assert secrets.redact(clean) == clean
        assert row.pattern.compiled.search(secret), secret
        assert any(trigger in secret.lower() for trigger in row.triggers)


@pytest.mark.parametrize("harmless", [text for _, texts in EXAMPLES.values() for text in texts])
def test_not_redacted(harmless):
    """A text that merely resembles a secret stays as it is."""
    for text in (harmless, f"cannot open {harmless}", f"({harmless})"):
        assert secrets.redact(text) == text


SHOWN = {
    "docs/stack.md": ["AWS_SECRET_ACCESS_KEY=ckpt-secret", "postgresql://ckpt:ckpt@127.0.0.1/checkpoints"],
}
"""Lines of the documentation that really show a secret: those of the demonstration stack."""


def test_precision_on_the_documentation():
    """Of the project's own documentation, only the lines that show a secret change."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 10
    for page in pages:
        shown = SHOWN.get(page.relative_to(ROOT).as_posix(), [])
        changed = [line for line in page.read_text(encoding="utf-8").splitlines() if secrets.redact(line) != line]
        assert [line for line in changed if not any(secret in line for secret in shown)] == []
        assert len(changed) == len(shown)


@pytest.mark.parametrize(
    ("text", "random"),
    [
        ("hunter2canary", True), ("Aa1bC2dE", True), ("abcdefghijklmnop1234", True), ("0197f3e28a3c", True), ("production", False),
        ("250", False), ("0", False), ("tenant-1", False), ("classification", False), ("20261117", False), ("a1b2c3", False),
    ],
)  # fmt: skip
def test_looks_random(text, random):
    """Words, numbers and short values do not look random."""
    assert secrets.looks_random(text) is random
