"""Free space, asked without waiting."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from ckpt_observe.metricstore import free_space


def test_free_space_of_a_path(tmp_path):
    """It is what the system says, by the location that was asked for, with and without a scheme; also of a file."""
    (tmp_path / "a file.db").write_text("")
    locations = [f"file://{tmp_path}", str(tmp_path), f"sqlite://{tmp_path}/a%20file.db", f"jsonl://{tmp_path}?gzip"]
    status = os.statvfs(tmp_path)
    found = free_space.free_bytes(locations)
    assert list(found) == locations
    assert all(value == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2) for value in found.values())


def test_other_places_are_left_out(tmp_path):
    """Servers, other hosts, relative and missing paths and nonsense have no free space here."""
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


def test_file_system_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    """The others are told; the one that hangs is asked by one thread only, and told again once it answers."""
    answer, asked = threading.Event(), []

    def disk_usage(path, real=shutil.disk_usage):
        if path.endswith("hangs"):
            asked.append(path)
            answer.wait(60)
        return real(tmp_path)

    monkeypatch.setattr(free_space.shutil, "disk_usage", disk_usage)
    places = [f"file://{tmp_path}/well", f"file://{tmp_path}/hangs"]
    try:
        assert [list(free_space.free_bytes(places)) for _ in range(3)] == [places[:1]] * 3
        assert len(asked) == 1
    finally:
        answer.set()
        free_space._blocked[f"{tmp_path}/hangs"].join(60)
    assert set(free_space.free_bytes(places)) == set(places)
