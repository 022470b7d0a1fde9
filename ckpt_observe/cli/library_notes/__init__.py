"""What the pages about libraries say beyond the tables of the instrumentors: the attributes in the words of the library, and the limits."""

from __future__ import annotations

from typing import Final

from ckpt_observe.cli.library_notes.agent_libraries import AGENT_NOTES
from ckpt_observe.cli.library_notes.file_libraries import FILE_NOTES
from ckpt_observe.cli.library_notes.training_libraries import TRAINING_NOTES

NOTES: Final = {**AGENT_NOTES, **TRAINING_NOTES, **FILE_NOTES}
"""By the name of the library."""
