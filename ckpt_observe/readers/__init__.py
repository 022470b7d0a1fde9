"""What is in this checkpoint, without executing it: keys, types, shapes and bytes of files, directories, databases and stores."""

from ckpt_observe.readers.contents import Breakdown, Contents, Entry, walk
from ckpt_observe.readers.contents_diff import ContentsDiff, EntryChange, diff
from ckpt_observe.readers.reading import read
from ckpt_observe.readers.source import Limits

__all__ = ["Breakdown", "Contents", "ContentsDiff", "Entry", "EntryChange", "Limits", "diff", "read", "walk"]
