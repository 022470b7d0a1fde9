"""Free space, measured without waiting for slow file systems."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from ckpt_observe.metricstore import free_space


def test_free_space_of_a_path(tmp_path):
    """The result is that of the system for each location, with and without a scheme, for directories and files."""
    (tmp_path / "a file.db").write_text("")
    locations = [f"file://{tmp_path}", str(tmp_path), f"sqlite://{tmp_path}/a%20file.db", f"jsonl://{tmp_path}?gzip"]
    status = os.statvfs(tmp_path)
    results = free_space.free_bytes(locations)
    assert list(results) == locations
    assert all(value == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2) for value in results.values())


def test_other_locations_are_omitted(tmp_path):
    """Servers, other machines, relative, missing and invalid paths have no result."""
    elsewhere = [
        "",
        "memory://",
        "s3://bucket/x",
        "postgresql://host/db",
        "file://otherhost/tmp",
        "relative",
        f"file://{tmp_path}/gone",
        "http://[",
        "file:///nul\0",
    ]
    assert free_space.free_bytes(elsewhere) == {}


def test_file_system_that_hangs_does_not_block(tmp_path, monkeypatch):
    """Other paths have results. The blocked path is measured by a single thread and has a result again once it answers."""
    answer, calls = threading.Event(), []

    def disk_usage(path, real=shutil.disk_usage):
        if path.endswith("hangs"):
            calls.append(path)
            answer.wait(60)
        return real(tmp_path)

    monkeypatch.setattr(free_space.shutil, "disk_usage", disk_usage)
    places = [f"file://{tmp_path}/well", f"file://{tmp_path}/hangs"]
    try:
        assert [list(free_space.free_bytes(places)) for _ in range(3)] == [places[:1]] * 3
        assert len(calls) == 1
    finally:
        answer.set()
        free_space._blocked[f"{tmp_path}/hangs"].join(60)
    assert set(free_space.free_bytes(places)) == set(places)
