"""A share of a core for some processes, by a CPU quota of Linux: control groups of version 1 or 2, as root."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""After what it may run in so many microseconds, a group waits for the next ones. Short, so that no wait is long."""
LEAST_US = 1_000
"""The least quota that Linux takes."""
END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups are made that have a CPU quota."""

    directory: Path
    version: int

    @classmethod
    def find(cls, root: Path = CGROUPS) -> Hierarchy:
        """Raises `OSError` if this machine, or this user, has none."""
        for place in (root / "cpu", root / "cpu,cpuacct"):
            if (place / "cpu.cfs_quota_us").exists():
                return cls(_writable(place), 1)
        controllers = root / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            return cls(_writable(root), 2)
        raise OSError(f"{root}: there is no control group that has the CPU controller; expected version 1 or 2")

    def quota(self, cores: float) -> int:
        """Microseconds of each period. Raises `ValueError` for what Linux refuses."""
        quota = round(cores * PERIOD_US)
        if quota < LEAST_US:
            raise ValueError(f"{cores} of a core; expected {LEAST_US / PERIOD_US} at least")
        return quota


class Share:
    """A group of processes that together take no more than `cores` of a core. Children of its processes are in it."""

    def __init__(self, hierarchy: Hierarchy, name: str, cores: float) -> None:
        quota = hierarchy.quota(cores)
        self._hierarchy = hierarchy
        self._directory = hierarchy.directory / f"ingestd-load-{os.getpid()}-{name}"
        self._directory.mkdir()
        # Its weight is for a machine that has other work: what the quota allows is there.
        if hierarchy.version == 1:
            self._write("cpu.cfs_period_us", PERIOD_US)
            self._write("cpu.cfs_quota_us", quota)
            self._write("cpu.shares", 100_000)
        else:
            (hierarchy.directory / "cgroup.subtree_control").write_text("+cpu")
            self._write("cpu.max", f"{quota} {PERIOD_US}")
            self._write("cpu.weight", 10_000)

    def take(self, processes: Iterable[int]) -> None:
        """Move processes into the group, by their ids, with all of their threads."""
        for process in processes:
            self._write("cgroup.procs", process)

    def close(self) -> None:
        """Remove the group. Its processes are ending; any that is left after 10 s goes back where groups are made."""
        members = self._directory / "cgroup.procs"
        deadline = time.monotonic() + END_SECONDS
        while members.read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in members.read_text().split():
            (self._hierarchy.directory / "cgroup.procs").write_text(process)
        self._directory.rmdir()

    def _write(self, name: str, value: object) -> None:
        (self._directory / name).write_text(str(value))


def _writable(place: Path) -> Path:
    if not os.access(place / "cgroup.procs", os.W_OK):
        raise OSError(f"{place}: no control group can be made here; expected to be root, and that it can be written to")
    return place
