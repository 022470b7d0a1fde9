"""The git store: the contract, and workspaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from ckpt_observe import readers
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores import git_repository
from ckpt_observe.core.stores.git import GitStore
from ckpt_observe.core.stores.git_repository import GitRepository, from_reference, to_reference
from ckpt_observe.core.workspace import Change, Workspace
from ckpt_observe.errors import (
    CapacityError,
    CheckpointNotFoundError,
    CkptObserveError,
    ConfigError,
    ConflictError,
    DeadlineError,
    IntegrityError,
    StorageError,
)
from ckpt_observe.testing.stores import HOSTILE_NAMES, StoreContract

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class TestGitStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return GitStore(f"git://{tmp_path}/repositories")

    def raw_read(self, store, task, id):
        return store.repository(task).run("cat-file", "blob", f"refs/checkpoints/{to_reference(id)}:checkpoint")

    def raw_write(self, store, task, id, data):
        repository = store.repository(task)
        content = repository.line("hash-object", "-w", "--stdin", data=data)
        tree = repository.line("mktree", data=f"100644 blob {content}\tcheckpoint\n".encode())
        repository.run("update-ref", f"refs/checkpoints/{to_reference(id)}", repository.line("commit-tree", tree, "-m", "x"))

    def another(self, store):
        return GitStore(store.location)

    # would start a dozen processes for each of a thousand mutations; the other stores run this test
    test_every_flip_and_truncation_is_detected = None

    @pytest.mark.parametrize("part", ["", "^{tree}", ":checkpoint"], ids=["commit", "tree", "content"])
    @pytest.mark.parametrize("damage", [lambda raw: raw[:40] + b"\xff\xff" + raw[42:], lambda raw: raw[:30], lambda raw: b""])
    def test_damaged_git_object_is_detected(self, store, checkpointer, part, damage):
        """A damaged object file of git counts as damage: a load raises, a fallback skips it, and it can be quarantined or deleted."""
        checkpointer.save("t", {"n": 1})
        info = checkpointer.save("t", {"n": 2})
        repository = store.repository("t")
        name = repository.line("rev-parse", f"refs/checkpoints/{to_reference(info.id)}{part}")
        path = Path(repository.path, "objects", name[:2], name[2:])
        path.chmod(0o600)
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(IntegrityError):
            checkpointer.load("t")
        assert Checkpointer(store, fallback=True).restore("t").skipped == (info.id,)
        moved = [finding.id for finding in checkpointer.verify("t", quarantine=True) if finding.quarantined]
        if not moved:
            assert not part  # git cannot create a reference to a commit that it cannot read
            checkpointer.delete("t", info.id)
        assert checkpointer.load("t") == {"n": 1}

    def test_listing_is_complete_or_raises(self, store, checkpointer, monkeypatch):
        """An object that git cannot read for lack of memory is not damaged: a listing must not omit it."""
        checkpointer.save("t", {"n": 1})

        def out_of_memory(self, name, size):
            raise CapacityError("out of memory")

        monkeypatch.setattr(GitRepository, "start_of_blob", out_of_memory)
        with pytest.raises(CapacityError):
            checkpointer.list("t")

    def test_plain_path_is_not_decoded(self, tmp_path):
        """Only in a URL does a percent sign have a meaning."""
        Checkpointer(GitStore(str(tmp_path / "100%25"))).save("t", {"n": 1})
        assert (tmp_path / "100%25" / "t.git").is_dir()

    @pytest.mark.parametrize(
        "message", ["unable to access '{path}'", "could not open {path}/objects/12/34", 'open("corrupt/x")', "bad ref 'is empty'"]
    )
    def test_names_are_not_taken_for_git_messages(self, tmp_path, monkeypatch, message):
        """A path that contains "corrupt" does not turn a failing disk into a damaged checkpoint, which a fallback would skip."""
        checkpointer = Checkpointer(f"git://{tmp_path}/corrupt: Permission denied")
        checkpointer.save("t", {"n": 1}, id="a")
        text = f"fatal: {message.format(path=checkpointer.store.repository('t').path)}: Input/output error".encode()
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 128, b"", text))
        with pytest.raises(StorageError) as caught:
            checkpointer.store.repository("t").run("cat-file")
        assert (caught.value.code, caught.value.retryable) == ("storage.io", True)

    def test_headers_are_read_without_payloads(self, store, checkpointer):
        """A listing reads the start of each blob, which may be larger than the memory."""
        info = checkpointer.save("t", {"n": "x" * 100_000})
        repository = store.repository("t")
        name = f"refs/checkpoints/{to_reference(info.id)}:checkpoint"
        blob = repository.run("cat-file", "blob", name)
        assert repository.start_of_blob(name, 1000) == blob[:1000]
        assert repository.start_of_blob(name, 10**9) == blob
        with pytest.raises(IntegrityError):
            repository.start_of_blob(name + "x", 1000)
        large = repository.line("hash-object", "-w", "--stdin", data=bytes(64 * 2**20))
        tree = repository.line("mktree", data=f"100644 blob {large}\tcheckpoint\n".encode())
        repository.commit(tree, "refs/checkpoints/large", "large")
        tracemalloc.start()
        assert [listed.id for listed in checkpointer.list("t")] == [info.id]
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
        tracemalloc.stop()

    def test_headers_are_read_at_exit_and_from_a_full_disk(self, store, checkpointer, monkeypatch):
        """A listing needs neither a thread, which Python 3.12 does not start at exit, nor a temporary file, for which there may be no room."""
        info = checkpointer.save("t", {"n": 1})

        def refuse(*_, **__):
            raise OSError

        monkeypatch.setattr(threading.Thread, "start", refuse)
        monkeypatch.setattr(tempfile, "gettempdir", refuse)
        assert [listed.id for listed in checkpointer.list("t")] == [info.id]

    def test_git_that_hangs_is_stopped(self, store, checkpointer, monkeypatch):
        """A disk that does not answer ends a listing with an error that says so."""
        checkpointer.save("t", {"n": 1})
        repository = store.repository("t")
        [name] = [f"{commit}:checkpoint" for commit in repository.references("refs/checkpoints/").values()]
        monkeypatch.setattr(git_repository, "_TIMEOUT_SECONDS", 0)
        with pytest.raises(DeadlineError, match="took more than"):
            repository.start_of_blob(name, 1000)

    def test_user_git_configuration_has_no_effect(self, store, checkpointer, monkeypatch, tmp_path):
        """Hooks, identities and directories of the user's git are ignored."""
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("GIT_CONFIG_COUNT", "nonsense")
        checkpointer.save("t", {"n": 1})
        assert checkpointer.load("t") == {"n": 1}

    def test_configuration_of_a_repository_runs_no_command(self, store, checkpointer, tmp_path):
        """A repository may name commands: hooks, and a command to fetch a lost object. They do not run. The control: git runs both."""
        checkpointer.save("t", {"n": 1})
        repository, marker = Path(store.repository("t").path), tmp_path / "executed"
        settings = {
            "core.repositoryFormatVersion": "1",
            "extensions.partialClone": "origin",
            "remote.origin.promisor": "true",
            "remote.origin.url": "ssh://host/path",
            "core.sshCommand": f"touch {marker}-ssh; false",
            "core.hooksPath": str(tmp_path / "hooks"),
        }
        git = ["git", "--git-dir", str(repository)]
        for name, value in settings.items():
            subprocess.run([*git, "config", name, value], check=True)
        (tmp_path / "hooks").mkdir()
        (tmp_path / "hooks" / "reference-transaction").write_text(f"#!/bin/sh\ntouch {marker}-hook\n")
        (tmp_path / "hooks" / "reference-transaction").chmod(0o700)
        checkpointer.save("t", {"n": 2})
        for path in (repository / "objects").glob("??/*"):
            path.unlink()
        for lookup in (lambda: checkpointer.list("t"), lambda: readers.read(repository.parent), lambda: checkpointer.load("t")):
            with suppress(CkptObserveError):
                lookup()
        assert list(tmp_path.glob("executed*")) == []
        subprocess.run([*git, "cat-file", "-p", "1" * 40], check=False)
        empty = subprocess.run([*git, "hash-object", "-w", "--stdin"], input=b"", capture_output=True, check=True).stdout.decode().strip()
        subprocess.run([*git, "update-ref", "refs/blobs/empty", empty], check=True)
        assert {path.name for path in tmp_path.glob("executed*")} == {"executed-ssh", "executed-hook"}


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "a..b", "a.lock", "_", "_1", "_2", "@{", "^"])
def test_references_are_valid_and_unique(name):
    """Every id has a reference that git accepts, and short ids can be derived from it."""
    reference = to_reference(name)
    subprocess.run(["git", "check-ref-format", f"refs/checkpoints/{reference}"], check=True)
    decoded = from_reference(reference)
    assert decoded == name or len(name) > len(decoded)
    assert to_reference(decoded) == reference


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "work"
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "main.py").write_bytes(b"print('hi')\r\n")
    (directory / "ignored.log").write_bytes(b"\x00\xff")
    (directory / ".gitignore").write_text("*.log\n")
    (directory / ".gitattributes").write_text("* text=auto eol=lf\n")
    script = directory / "run"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (directory / "link").symlink_to("src/main.py")
    return directory


def contents(directory):
    return {
        str(path.relative_to(directory)): (os.readlink(path) if path.is_symlink() else path.read_bytes(), os.access(path, os.X_OK))
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_workspace_is_restored_byte_for_byte(tmp_path, directory):
    """A snapshot contains every file unchanged, including ignored files and line ends, and restore undoes every change."""
    workspace = Workspace(tmp_path / "repositories", "task")
    before = contents(directory)
    workspace.save(directory, "one")
    (directory / "src" / "main.py").write_text("changed")
    (directory / "ignored.log").unlink()
    (directory / "new" / "deep").mkdir(parents=True)
    (directory / "new" / "deep" / "file").write_text("new")
    workspace.save(directory, "two")
    after = contents(directory)
    workspace.restore(directory, "one")
    assert contents(directory) == before
    assert not (directory / "new").exists()
    workspace.restore(directory, "two")
    assert contents(directory) == after


def test_workspace_diff(tmp_path, directory):
    """A diff lists what changed between two snapshots."""
    workspace = Workspace(tmp_path / "repositories", "task")
    workspace.save(directory, "one")
    (directory / "src" / "main.py").write_text("changed")
    (directory / "ignored.log").unlink()
    (directory / "näme\n").write_text("new")
    workspace.save(directory, "two")
    assert sorted(workspace.diff("one", "two")) == [
        Change("ignored.log", "removed"),
        Change("näme\n", "added"),
        Change("src/main.py", "changed"),
    ]


def test_workspace_shares_the_repository_of_its_checkpoints(tmp_path, directory):
    """One repository per task contains state and workspace under the same id."""
    checkpointer = Checkpointer(f"git://{tmp_path}/repositories")
    info = checkpointer.save("task", {"n": 1})
    Workspace(tmp_path / "repositories", "task").save(directory, info.id)
    assert os.listdir(tmp_path / "repositories") == ["task.git"]
    assert checkpointer.load("task", info.id) == {"n": 1}


def test_workspace_refusals(tmp_path, directory):
    """An existing id, a missing id and a nested repository raise the matching error."""
    workspace = Workspace(tmp_path / "repositories", "task")
    with pytest.raises(CheckpointNotFoundError):
        workspace.restore(directory, "one")
    workspace.save(directory, "one")
    with pytest.raises(ConflictError):
        workspace.save(directory, "one")
    (directory / "inner" / ".git").mkdir(parents=True)
    with pytest.raises(ConfigError, match="inside the workspace"):
        workspace.save(directory, "two")


def test_repository_inside_the_workspace_is_refused(tmp_path, directory):
    """It would be part of every snapshot, and restore would remove newer snapshots from it."""
    (tmp_path / "link").symlink_to(directory)
    for root in (directory / ".checkpoints", tmp_path / "link" / "deep"):
        workspace = Workspace(root, "task")
        with pytest.raises(ConfigError, match="elsewhere"):
            workspace.save(directory, "one")
    outside = Workspace(tmp_path / "repositories", "task")
    outside.save(directory, "one")
    with pytest.raises(ConfigError, match="elsewhere"):
        outside.restore(tmp_path, "one")


def test_refused_restore_removes_nothing(tmp_path, directory):
    """If restore cannot put everything back, the directory is not changed."""
    workspace = Workspace(tmp_path / "repositories", "task")
    workspace.save(directory, "one")
    (directory / "run").unlink()
    (directory / "new").write_text("new")
    (directory / "cloned" / ".git").mkdir(parents=True)
    before = contents(directory)
    with pytest.raises(ConfigError, match="cloned"):
        workspace.restore(directory, "one")
    assert contents(directory) == before


def test_damaged_reference_is_never_silently_skipped(tmp_path):
    """git omits a broken reference from listings; its checkpoint nevertheless counts as damaged, and no older one is loaded."""
    checkpointer = Checkpointer(f"git://{tmp_path}/store")
    checkpointer.save("t", {"n": 1}, id="older")
    checkpointer.save("t", {"n": 2}, id="newest")
    path = tmp_path / "store" / "t.git" / "refs" / "checkpoints" / "newest"
    good = path.read_bytes()
    for damaged in (good[:20] + b"!" + good[21:], b"0" + good[1:] if good[:1] != b"0" else b"1" + good[1:], good[:7], b""):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            checkpointer.load("t")
        assert {(finding.id, finding.good) for finding in checkpointer.verify("t")} == {("older", True), ("newest", False)}
        assert Checkpointer(checkpointer.store, fallback=True).restore("t").skipped == ("newest",)
    path.write_bytes(good)
    assert checkpointer.load("t") == {"n": 2}
    path.write_bytes(b"")
    assert [finding.quarantined for finding in checkpointer.verify("t", quarantine=True) if not finding.good] == [True]
    assert checkpointer.load("t") == {"n": 1}
    assert len(list((tmp_path / "store" / "t.git" / "damaged").iterdir())) == 1


@pytest.mark.parametrize("damage", ["unreadable", "cut", "missing", "of another file"])
def test_damaged_snapshot_leaves_the_directory_unchanged(tmp_path, directory, damage):
    """Damage is reported before a file is removed or written."""
    workspace = Workspace(tmp_path / "repositories", "task")
    commit = workspace.save(directory, "one")
    repository = GitRepository(str(tmp_path / "repositories" / "task.git"))
    names = [repository.line("rev-parse", f"{commit}:{file}") for file in ("src/main.py", "run")]
    path, other = (Path(repository.path, "objects", name[:2], name[2:]) for name in names)
    path.chmod(0o600)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"unreadable": b"rubbish", "cut": path.read_bytes()[:12], "of another file": other.read_bytes()}[damage])
    (directory / "run").write_text("changed")
    (directory / "src" / "main.py").unlink()
    (directory / "new").write_text("new")
    before = contents(directory)
    with pytest.raises(IntegrityError):
        workspace.restore(directory, "one")
    assert contents(directory) == before


def test_missing_temporary_directory_raises_storage_error(tmp_path, directory, monkeypatch):
    """A full or missing temporary directory is reported as a CheckpointError."""
    workspace = Workspace(tmp_path / "repositories", "task")
    workspace.save(directory, "one")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    for call in (workspace.save, workspace.restore):
        with pytest.raises(StorageError):
            call(directory, "one")


def test_new_directories_are_removed_whatever_their_path(tmp_path):
    """Directories whose name only starts like `.git` are removed, too, also if the path of the workspace contains such a name."""
    directory = tmp_path / ".github-runner" / "work"
    directory.mkdir(parents=True)
    workspace = Workspace(tmp_path / "repositories", "task")
    (directory / "file").write_text("content")
    workspace.save(directory, "one")
    (directory / ".github" / "workflows").mkdir(parents=True)
    (directory / ".git" / "refs").mkdir(parents=True)
    workspace.restore(directory, "one")
    assert sorted(path.name for path in directory.rglob("*")) == [".git", "file", "refs"]


def test_snapshots_are_listed_and_deleted(tmp_path, directory):
    """Snapshots of a task can be listed and deleted individually."""
    workspace = Workspace(tmp_path / "repositories", "task")
    assert workspace.list() == ()
    for id in ("one", "two/../2"):
        workspace.save(directory, id)
    assert sorted(workspace.list()) == ["one", "two/../2"]
    workspace.delete("one")
    assert workspace.list() == ("two/../2",)
    with pytest.raises(CheckpointNotFoundError):
        workspace.delete("one")
    workspace.restore(directory, "two/../2")
