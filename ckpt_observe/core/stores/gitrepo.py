"""A bare git repository that we own, driven by plumbing commands.

Nothing of the user's git reaches it: no global configuration, no hooks, no filters, no attributes that alter content.
Objects and references are synced when a command returns.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping

from ckpt_observe.core.names import id_to_file_name, known_as
from ckpt_observe.errors import AccessError, CapacityError, CheckpointError, ConfigError, ConflictError, IntegrityError, StorageError
from ckpt_observe.support import files
from ckpt_observe.support.errnos import translate_os_errors

_SETTINGS = ("core.fsync=all", "core.fsyncMethod=fsync", "gc.auto=0", "user.name=ckpt", "user.email=ckpt@localhost")
_SYSTEM = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding -diff\n"
"""Above any .gitattributes in a workspace: what is kept is what was there, byte for byte."""
_SECONDS = 600

_DAMAGED = (
    *(b"inflate:", b"corrupt", b"is empty", b"too long, exceeds", b"unable to parse"),
    *(b"unable to stream", b"unable to read", b"bad file", b"does not exist in"),
    *(b"invalid object type", b"invalid object name", b"unexpected line in"),
)
"""What git says of an object that was altered, cut or lost: it checks them itself."""

NO_COMMIT = "0" * 40
_IGNORED = re.compile(rb"ignoring (?:broken ref|dangling symref) (\S+)")
"""What git says of a reference that it leaves out of a listing: a checkpoint was there, and an older one is not it."""
_QUOTED = re.compile(rb"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\")")
_TABLE: tuple[tuple[bytes, type[CheckpointError], str, bool], ...] = (
    (b"reference already exists", ConflictError, "conflict.exists", False),
    (b"cannot lock ref", ConflictError, "conflict.locked", True),
    (b"No space left", CapacityError, "storage.no_space", False),
    (b"Permission denied", AccessError, "storage.permission", False),
    (b"Too many open files", StorageError, "storage.too_many_files", True),
    (b"Out of memory", CapacityError, "memory.exhausted", False),
    *((words, IntegrityError, "integrity.malformed", False) for words in _DAMAGED),
)
"""What git says, in our words; the first that fits."""


class Repository:
    """One bare repository."""

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        return os.path.isfile(os.path.join(self.path, "HEAD"))

    def make(self) -> None:
        """Make it, unless it is there: made aside and then renamed, so that nobody sees half of one."""
        if self.exists():
            return
        if shutil.which("git") is None:
            raise ConfigError("git checkpoints need the git program, which is not installed")
        aside = f"{self.path}.{secrets.token_hex(4)}.tmp"
        with translate_os_errors(f"making {self.path}"):
            files.make_directory(aside)
            Repository(aside).run("init", "--bare", "--quiet", "--template=", aside)
            os.mkdir(os.path.join(aside, "info"))
            with open(os.path.join(aside, "info", "attributes"), "w", encoding="ascii") as file:
                file.write(_ATTRIBUTES)
            files.sync_tree(aside)
            try:
                files.move(aside, self.path)
            except OSError:
                if not self.exists():
                    raise
                shutil.rmtree(aside)  # somebody else was faster
            files.sync_directory(os.path.dirname(self.path))

    def run(
        self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> bytes:
        """What the command prints. A failure is an error of ours with git's own words."""
        return self._done(*arguments, data=data, environment=environment, cwd=cwd).stdout

    def _done(
        self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            done = subprocess.run(
                ["git", *settings, "--git-dir", self.path, *arguments],
                input=data,
                capture_output=True,
                check=False,
                timeout=_SECONDS,
                cwd=cwd,
                env={**inherited, **_SYSTEM, **(environment or {})},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageError(f"git {arguments[0]} in {self.path}: {error}") from error
        if done.returncode:
            raise self._error(done.stderr, f"git {arguments[0]} in {self.path}")
        return done

    def line(self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None) -> str:
        return self.run(*arguments, data=data, environment=environment, cwd=cwd).decode().strip()

    def commit(self, tree: str, reference: str, message: str) -> str:
        """A commit of the tree under a new reference. ConflictError if that is taken."""
        commit = self.line("commit-tree", tree, "-m", message)
        self.run("update-ref", "--create-reflog", reference, commit, "0" * 40)
        return commit

    def remove(self, reference: str, commit: str) -> None:
        """Remove a reference to that commit. One that is damaged is put aside: git refuses to, and it may tell somebody something."""
        if commit != NO_COMMIT:
            self.run("update-ref", "-d", reference, commit)
            return
        with translate_os_errors(f"moving {reference} in {self.path}"):
            aside = os.path.join(self.path, "damaged")
            os.makedirs(aside, exist_ok=True)
            files.move(os.path.join(self.path, reference), os.path.join(aside, f"{os.path.basename(reference)}.{secrets.token_hex(4)}"))
            files.sync_directory(aside)

    def references(self, prefix: str) -> dict[str, str]:
        """Names below the prefix, and the commit of each: one that does not exist where the reference itself is damaged."""
        if not self.exists():
            return {}
        done = self._done("for-each-ref", "--format=%(objectname) %(refname)", prefix)
        pairs = [line.split(" ", 1) for line in done.stdout.decode().splitlines()]
        damaged = [(NO_COMMIT, name.decode()) for name in _IGNORED.findall(done.stderr) if name.startswith(prefix.encode())]
        return {name.removeprefix(prefix): commit for commit, name in (*pairs, *damaged)}

    def _error(self, said: bytes, doing: str) -> CheckpointError:
        words = _QUOTED.sub(b"", said.replace(os.fsencode(self.path), b""))  # names of files and references are no words of git's
        kind, code, retryable = next((entry[1:] for entry in _TABLE if entry[0] in words), (StorageError, "storage.io", True))
        return kind(f"{doing}: {said.decode(errors='replace').strip()[:300]}", code=code, retryable=retryable)


def to_reference(id: str) -> str:
    """The last part of a reference: a file name under git's rules too, which forbid two dots, an end in .lock, and a tilde."""
    return id_to_file_name(id).replace("_", "_1").replace("~", "_2").replace(".", "%2E")


def from_reference(name: str) -> str:
    """The id again, or what stands for it where only its hash was kept."""
    return known_as(name.replace("_2", "~").replace("_1", "_"))
