"""Shares of a core: what is written to the control groups of either version, and what is said where there are none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import shares
from shares import Hierarchy, Share

if TYPE_CHECKING:
    from pathlib import Path


def test_a_group_of_version_1_has_a_quota_and_its_processes(tmp_path: Path) -> None:
    groups = tmp_path / "cpu"
    groups.mkdir()
    for name in ("cpu.cfs_quota_us", "cgroup.procs"):
        (groups / name).touch()
    share = Share(Hierarchy.find(tmp_path), "a", 0.25)
    share.take([7])
    (made,) = (each for each in groups.iterdir() if each.is_dir())
    assert made.name == f"ingestd-load-{os.getpid()}-a"
    assert {file.name: file.read_text() for file in made.iterdir()} == {
        "cpu.cfs_period_us": "20000",
        "cpu.cfs_quota_us": "5000",
        "cpu.shares": "100000",
        "cgroup.procs": "7",
    }


def test_a_group_of_version_2_has_a_quota(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (tmp_path / name).touch()
    Share(Hierarchy.find(tmp_path), "a", 1.5)
    (made,) = (each for each in tmp_path.iterdir() if each.is_dir())
    assert {file.name: file.read_text() for file in made.iterdir()} == {"cpu.max": "30000 20000", "cpu.weight": "10000"}
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_process_that_does_not_end_leaves_the_group_before_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is removed by `rmdir` although it has files, which a directory of a test can not do."""
    groups, removed = tmp_path / "cpu", []
    groups.mkdir()
    for name in ("cpu.cfs_quota_us", "cgroup.procs"):
        (groups / name).touch()
    monkeypatch.setattr(shares, "END_SECONDS", 0.2)
    monkeypatch.setattr(shares.Path, "rmdir", lambda path: removed.append(path.name))
    share = Share(Hierarchy.find(tmp_path), "a", 1)
    share.take([7])
    share.close()
    assert (groups / "cgroup.procs").read_text() == "7"
    assert removed == [f"ingestd-load-{os.getpid()}-a"]


def test_where_no_group_can_be_made_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="there is no control group that has the CPU controller; expected version 1 or 2"):
        Hierarchy.find(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("io memory\n")
    with pytest.raises(OSError, match="there is no control group that has the CPU controller"):
        Hierarchy.find(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    monkeypatch.setattr(shares.os, "access", lambda *_: False)
    with pytest.raises(OSError, match="no control group can be made here; expected to be root"):
        Hierarchy.find(tmp_path)


def test_a_share_that_linux_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.01 of a core; expected 0\.05 at least"):
        Hierarchy(tmp_path, 1).quota(0.01)
