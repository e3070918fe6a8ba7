"""Runs a command and says what its whole process tree cost: wall, CPU seconds, peak memory.

As a program: `python meter.py --report FILE [--cores 0] -- COMMAND…`. SIGTERM is passed on to the command. The program
adopts every orphan of the tree (PR_SET_CHILD_SUBREAPER), so that the CPU of each process is counted exactly, by the
kernel, when it is reaped; memory is the sum of proportional set sizes (PSS: shared pages count once), sampled.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Usage", "descendants", "measure", "proportional_memory"]

SAMPLE_SECONDS = 0.1
FIRST_SAMPLES_SECONDS = 0.01
"""Between samples in the first second: short runs are over soon."""
ORPHAN_SECONDS = 5.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command cost. Times of `started` and `ended` are the machine's monotonic clock, in seconds."""

    status: int
    started: float
    ended: float
    cpu_seconds: float
    peak_memory: int
    """Bytes, PSS summed over the tree at its largest."""

    @property
    def wall(self) -> float:
        """Seconds from start to end of the command."""
        return self.ended - self.started


def measure(
    command: list[str], *, cores: str, log: Path, timeout: float, until: Callable[[], bool] | None = None
) -> tuple[Usage, float]:
    """Run `command` on `cores`; its usage, and the monotonic time at which it was done.

    Done is its own end, or, for a command that runs for ever, the moment `until` holds; it is then ended by SIGTERM.
    Raises `RuntimeError` with the end of `log` (its output) if it fails, and `TimeoutError` if it is not done in time.
    """
    report = log.with_suffix(".usage.json")
    report.unlink(missing_ok=True)
    metered = [sys.executable, __file__, "--report", str(report), "--cores", cores, "--", *command]
    with log.open("wb") as output:
        meter = subprocess.Popen(metered, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + timeout
    done = None
    try:
        while meter.poll() is None and done is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command[0]}: not done in {timeout:g} s\n{_end_of(log)}")
            _wait(meter, 0.05)
            if until is not None and until():
                done = time.monotonic()
        if done is not None:
            meter.terminate()
            meter.wait(30)
    finally:
        if meter.poll() is None:
            meter.kill()
            meter.wait()
    if not report.exists():
        raise RuntimeError(f"{command[0]}: the meter ended with {meter.returncode}\n{_end_of(log)}")
    usage = Usage(**json.loads(report.read_text()))
    if done is None and (until is not None or usage.status != 0):
        raise RuntimeError(f"{' '.join(command)}: ended with {usage.status}\n{_end_of(log)}")
    return usage, usage.ended if done is None else done


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def descendants(root: int) -> list[int]:
    """Process ids of a process and of all below it, as they are now."""
    found = [root]
    for pid in found:
        try:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found.extend(int(child) for child in children.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def proportional_memory(pid: int) -> int:
    """PSS of one process, in bytes; 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # It ended between two looks.
    return 0


class _Sampler(threading.Thread):
    """Looks at the memory of everything below this process until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        own = os.getpid()
        started = time.monotonic()
        while not self._stopped.wait(SAMPLE_SECONDS if time.monotonic() > started + 1 else FIRST_SAMPLES_SECONDS):
            self.peak = max(self.peak, sum(proportional_memory(pid) for pid in descendants(own) if pid != own))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _reap_all(command: subprocess.Popen[bytes]) -> int:
    """Wait for the command, then for every orphan it left; those that stay are killed. The command's status."""
    status = command.wait()
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            if time.monotonic() > deadline:
                for orphan in descendants(os.getpid())[1:]:
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.01)


def main() -> int:
    """Run the command given behind `--` and write its usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--cores", default="", help="cores the command may use, as taskset has them (0,2-3)")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    bound = ["setpriv", "--pdeathsig", "KILL", *(["taskset", "-c", given.cores] if given.cores else []), *given.command]
    started = time.monotonic()
    command = subprocess.Popen(bound, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: command.terminate())
    sampler = _Sampler()
    sampler.start()
    command.wait()
    ended = time.monotonic()
    status = _reap_all(command)
    sampler.stop()
    cost = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = Usage(status, started, ended, cost.ru_utime + cost.ru_stime, sampler.peak)
    given.report.write_text(json.dumps(asdict(usage)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
