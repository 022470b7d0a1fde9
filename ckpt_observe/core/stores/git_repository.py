"""A bare git repository of our own, used through plumbing commands.

The user's git settings do not affect it: no global configuration, hooks, filters or attributes that change content. Objects and
references are synced when a command returns.

A repository may be somebody else's, and its configuration can name commands, so git runs without hooks, and with no protocol: without
an object, git would fetch it from a "promisor", whose address and `core.sshCommand` are in the configuration.
"""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ckpt_observe.core.format.names import id_from_file_name, id_to_file_name
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    ConfigError,
    ConflictError,
    DeadlineError,
    IntegrityError,
    StorageError,
)
from ckpt_observe.support import files
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.errnos import to_checkpoint_error, translate_os_errors
from ckpt_observe.support.host_exceptions import raise_host_exception

NO_COMMIT = "0" * 40
"""Stands for the commit of a damaged reference. To git it means that a reference does not exist."""

_SETTINGS = (
    *("core.fsync=all", "core.fsyncMethod=fsync", "gc.auto=0", "user.name=ckpt", "user.email=ckpt@localhost"),
    *(f"core.hooksPath={os.devnull}", "core.fsmonitor=false"),
)
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding -diff\n"
"""Overrides any .gitattributes of a workspace, so that its files are stored byte for byte."""
_TIMEOUT_SECONDS = 600
_READ_SIZE = 1 << 20

_DAMAGE_MESSAGES = (
    *(b"inflate:", b"corrupt", b"is empty", b"too long, exceeds", b"unable to parse"),
    *(b"unable to stream", b"unable to read", b"bad file", b"does not exist in"),
    *(b"invalid object type", b"invalid object name", b"unexpected line in"),
)
"""git's messages about objects that were altered, truncated or lost."""
_ERRORS: tuple[tuple[bytes, type[CheckpointError], str, bool], ...] = (
    (b"reference already exists", ConflictError, "conflict.exists", False),
    (b"cannot lock ref", ConflictError, "conflict.locked", True),
    (b"No space left", CapacityError, "storage.no_space", False),
    (b"Disk quota exceeded", CapacityError, "storage.quota", False),
    (b"Read-only file system", StorageError, "storage.read_only", False),
    (b"Input/output error", StorageError, "storage.io", True),
    (b"Permission denied", AccessError, "storage.permission", False),
    (b"Too many open files", StorageError, "storage.too_many_files", True),
    (b"Out of memory", CapacityError, "memory.exhausted", False),
    *((message, IntegrityError, "integrity.malformed", False) for message in _DAMAGE_MESSAGES),
)
"""git's messages, with our exception, its code, and whether a retry can help. The first match counts."""
_IGNORED_REFERENCE = re.compile(rb"ignoring (?:broken ref|dangling symref) (\S+)")
"""git's warning about a damaged reference that a listing omits. It must not be omitted: it may be the newest checkpoint."""
_STORED_IN = re.compile(rb"\(stored in (.+)\) is corrupt")
_QUOTED = re.compile(rb"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\")")


class GitRepository:
    """One bare repository, which may not exist yet; see `create`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        try:
            os.stat(os.path.join(self.path, "HEAD"))
        except FileNotFoundError:
            return False
        except OSError as error:  # such as a directory that this user may not read: its checkpoints are not missing
            raise_host_exception(error)
            raise to_checkpoint_error(error, f"opening {self.path}") from error
        return True

    def create(self) -> None:
        """Create the repository unless it exists, under a temporary name that is changed at the end: an incomplete one is never used."""
        if self.exists():
            return
        if shutil.which("git") is None:
            raise ConfigError("git checkpoints and snapshots need the git program, which is not installed")
        temporary = f"{self.path}.{secrets.token_hex(4)}.tmp"
        with translate_os_errors(f"making {self.path}"):
            files.make_directory(temporary)
            GitRepository(temporary).run("init", "--bare", "--quiet", "--template=", temporary)
            os.mkdir(os.path.join(temporary, "info"))
            files.write_file(os.path.join(temporary, "info", "attributes"), _ATTRIBUTES.encode(), sync=False)
            files.sync_tree(temporary)
            try:
                files.move(temporary, self.path)
            except OSError as error:
                raise_host_exception(error)
                if not self.exists():
                    raise
                shutil.rmtree(temporary)  # another process created it first
            files.sync_directory(os.path.dirname(self.path))

    def run(
        self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> bytes:
        """Run a git command and return its output. A failure is raised as a CheckpointError with git's message."""
        return self._run(*arguments, data=data, environment=environment, cwd=cwd).stdout

    def line(self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None) -> str:
        """Run a git command and return its output as text, stripped."""
        return self.run(*arguments, data=data, environment=environment, cwd=cwd).decode().strip()

    def _run(
        self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        with self._translate_errors(arguments[0]):
            process = subprocess.run(
                self._command(arguments),
                input=data,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_SECONDS,
                cwd=cwd,
                env={**_environment(), **(environment or {})},
            )
        if process.returncode:
            raise self._error(process.stderr, f"git {arguments[0]} in {self.path}")
        return process

    def start_of_blob(self, name: str, size: int) -> bytes:
        """Return up to `size` bytes from the start of a blob, which may have gigabytes, without reading the rest."""
        arguments = ("cat-file", "blob", name)
        with self._translate_errors(arguments[0]):
            with subprocess.Popen(self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()) as process:
                try:
                    data, messages = _read_start(process, size)
                except BaseException:
                    process.kill()
                    raise
                is_cut = len(data) == size
                if is_cut:
                    process.kill()
            if process.returncode and not is_cut:
                raise self._error(messages, f"git {arguments[0]} in {self.path}")
        return data

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["git", *(part for setting in _SETTINGS for part in ("-c", setting)), "--git-dir", self.path, *arguments]

    @contextmanager
    def _translate_errors(self, command: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise_host_exception(error)
            raise to_checkpoint_error(error, f"git {command} in {self.path}") from error
        except subprocess.TimeoutExpired as error:
            text = f"git {command} in {self.path} took more than {_TIMEOUT_SECONDS} s and was stopped; check the storage device"
            raise DeadlineError(text) from error

    def commit(self, tree: str, reference: str, message: str) -> str:
        """Commit a tree under a new reference and return the commit. ConflictError if the reference exists."""
        commit = self.line("commit-tree", tree, "-m", message)
        self.run("update-ref", "--create-reflog", reference, commit, NO_COMMIT)
        return commit

    def remove(self, reference: str, commit: str) -> None:
        """Remove a reference to this commit. With NO_COMMIT it is damaged, and git cannot remove it: its file is moved to `damaged/`."""
        if commit != NO_COMMIT:
            self.run("update-ref", "-d", reference, commit)
            return
        with translate_os_errors(f"moving {reference} in {self.path}"):
            directory = os.path.join(self.path, "damaged")
            os.makedirs(directory, exist_ok=True)
            target = os.path.join(directory, f"{os.path.basename(reference)}.{secrets.token_hex(4)}")
            files.move(os.path.join(self.path, reference), target)
            files.sync_directory(directory)

    def references(self, prefix: str) -> dict[str, str]:
        """Return the commits of all references below a prefix, by name without the prefix; NO_COMMIT if a reference is damaged."""
        if not self.exists():
            return {}
        process = self._run("for-each-ref", "--format=%(objectname) %(refname)", prefix)
        pairs = [line.split(" ", 1) for line in process.stdout.decode().splitlines()]
        ignored = _IGNORED_REFERENCE.findall(process.stderr)
        damaged = [(NO_COMMIT, name.decode()) for name in ignored if name.startswith(prefix.encode())]
        return {name.removeprefix(prefix): commit for commit, name in (*pairs, *damaged)}

    def _error(self, stderr: bytes, action: str) -> CheckpointError:
        message = _QUOTED.sub(b"", stderr.replace(os.fsencode(self.path), b""))  # names could look like one of these messages
        kind, code, retryable = next((entry[1:] for entry in _ERRORS if entry[0] in message), (StorageError, "storage.io", True))
        if kind is IntegrityError and (unreadable := _read_error(stderr)) is not None:
            return to_checkpoint_error(unreadable, action)
        text = stderr.decode(errors="replace").strip()[:300]
        return kind(add_advice(f"{action}: {text}", code), code=code, retryable=retryable)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT


def _read_start(process: subprocess.Popen[bytes], size: int) -> tuple[bytes, bytes]:
    """Return up to `size` bytes of the output of a process, and all of its messages if it ends before that. Needs no thread and no file.

    Python 3.12 starts no thread at exit, when programs still load checkpoints, and a full disk has no room for temporary files.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    output, messages = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, received in ((process.stdout, output), (process.stderr, messages)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, received)
        while selector.get_map() and len(output) < size:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, _TIMEOUT_SECONDS)
            for key, _ in selector.select(deadline - time.monotonic()):
                piece = os.read(key.fd, _READ_SIZE)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
    del output[size:]
    return bytes(output), bytes(messages)


def _read_error(stderr: bytes) -> OSError | None:
    """Return the error of reading the object that git calls corrupt; None if it can be read. git does not say that the medium failed."""
    match = _STORED_IN.search(stderr)
    if match is None:
        return None
    try:
        with open(match[1], "rb", buffering=0) as file:
            while file.read(_READ_SIZE):
                pass
    except FileNotFoundError:
        return None
    except OSError as error:
        raise_host_exception(error)
        return error
    return None


def to_reference(id: str) -> str:
    """Return the last part of an id's reference: its file name without what git forbids (two dots, the ending .lock, tildes)."""
    return id_to_file_name(id).replace("_", "_1").replace("~", "_2").replace(".", "%2E")


def from_reference(name: str) -> str:
    """Return the id from the last part of its reference; its hashed file name if the id was too long."""
    return id_from_file_name(name.replace("_2", "~").replace("_1", "_"))
