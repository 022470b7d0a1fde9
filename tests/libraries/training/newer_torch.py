"""Makes files that a newer version of torch might have written."""

from __future__ import annotations

import zipfile


def make_newer(path):
    """Change the version of the format of a file of torch to one that the installed torch does not know."""
    with zipfile.ZipFile(path) as source:
        contents = {entry.filename: source.read(entry) for entry in source.infolist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, content in contents.items():
            target.writestr(name, b"999\n" if name.endswith("/version") else content)
