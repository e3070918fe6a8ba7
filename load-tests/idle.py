"""What a daemon costs that has nothing to do: CPU while it follows 1,000 quiet files, private memory of its workers."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import results
from meter import descendants
from workload import Daemon, real_kafka, scratch

MOST_CPU = 1.0
"""Per cent of one core."""
MOST_MEMORY_MB = 60.0
"""Private memory of each of four workers, arenas aside."""
SETTLE_SECONDS = 5.0
CONTENT = b"one line that was here before\n" * 40


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes since their start."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def private_memory(pid: int) -> int:
    """Bytes that only this process has, shared-memory arenas (memfd) aside."""
    total = 0
    counted = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in {"Private_Clean", "Private_Dirty", "Private_Hugetlb"}:
            total += int(rest.split()[0]) * 1024 if counted else 0
        elif "-" in line.split(" ", 1)[0]:
            counted = "/memfd:" not in line
    return total


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with scratch(given.directory) as directory, real_kafka(directory, None) as cluster:
        topic = cluster.create_topic(partitions=4)
        logs = directory / "logs"
        logs.mkdir()
        for number in range(given.files):
            (logs / f"app-{number:04}.log").write_bytes(b"file %d\n" % number + CONTENT)
        size = sum(log.stat().st_size for log in logs.iterdir())
        daemon = Daemon(
            directory / "daemon",
            servers=cluster.bootstrap,
            topic=topic,
            paths=[f"{logs}/*.log"],
            daemon={"workers": given.workers},
        )
        with daemon:
            daemon.start_ready()
            daemon.until(lambda: daemon.acknowledged() >= size, "all that was there is acknowledged", 60)
            time.sleep(SETTLE_SECONDS)
            processes = descendants(daemon.pid)
            before, started = cpu_seconds(processes), time.monotonic()
            time.sleep(given.seconds)
            percent = (cpu_seconds(processes) - before) / (time.monotonic() - started) * 100
            memory = [private_memory(pid) / 1e6 for pid in daemon.worker_pids()]
            supervisor = private_memory(daemon.pid) / 1e6
            daemon.stop()
    verdicts = [
        f"{percent:.2f} % of a core, below {MOST_CPU:.0f} %: {'reached' if percent < MOST_CPU else 'MISSED'}",
        f"workers {max(memory):.1f} MB private, below {MOST_MEMORY_MB:.0f} MB: "
        + ("reached" if max(memory) < MOST_MEMORY_MB else "MISSED"),
    ]
    rows = [["CPU, % of a core", percent], ["supervisor, MB private", supervisor]]
    rows += [[f"worker {slot}, MB private", each] for slot, each in enumerate(memory)]
    caption = f"{given.files} quiet files, {given.workers} workers, {given.seconds:.0f} s; arenas aside"
    results.print_table("Idle", ["what", "figure"], rows, "\n".join([caption, *verdicts]))
    settings = {"files": given.files, "workers": given.workers, "seconds": given.seconds, "delivery": "at least once"}
    figures = {"cpu_percent": percent, "supervisor_mb": supervisor, "workers_mb": memory, "verdicts": verdicts}
    saved = results.save("idle", settings, figures)
    bars = {"memory": {f"worker {slot}": each for slot, each in enumerate(memory)} | {"supervisor": supervisor}}
    plot = results.plot_bars("idle", f"{caption}; CPU {percent:.2f} % of a core", "MB private", bars)
    print(f"written: {saved}, {plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
