"""What a member of a consumer group costs: joining with thousands of partitions, their metadata, commits, idling."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import results
from harness.cluster import KafkaCluster
from workload import JAVA_FOR_MEASURING, scratch

MOST_JOIN_SECONDS = 1.0
"""CPU seconds from the first request to the last claim's start."""
MOST_REFRESH_SECONDS = 0.1
"""CPU seconds for the metadata of all partitions, with the consumer and the group that hear of it."""
MOST_IDLE_PERCENT = 0.2
"""Of one core."""
TOPICS = 5
"""A controller makes at most 9,999 partitions at once."""
MEMBER = Path(__file__).resolve().with_name("group_member.py")


def measure(
    cluster: KafkaCluster, topics: list[str], partitions: int, group_id: str, seconds: float = 0.1
) -> dict[str, float]:
    """The figures of one member, in a process that has nothing else in its memory."""
    command = [sys.executable, str(MEMBER), cluster.servers, ",".join(topics), str(partitions), group_id, str(seconds)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--idle-partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with (
        scratch(given.directory) as directory,
        KafkaCluster(
            directory / "kafka",
            # A node that makes thousands of partitions says nothing for a while, and shall not be taken for dead.
            settings={"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "2000"},
            java_options=JAVA_FOR_MEASURING,
        ) as cluster,
    ):
        small = cluster.create_topic(partitions=given.idle_partitions)
        idle = measure(cluster, [small], given.idle_partitions, "idle", given.seconds)
        large = [cluster.create_topic(partitions=given.partitions // TOPICS) for _ in range(TOPICS)]
        # The node takes a while until it leads thousands of new partitions.
        measure(cluster, large, given.partitions, "early")
        first = measure(cluster, large, given.partitions, "large")
        again = measure(cluster, large, given.partitions, "large")
    join = max(first["join_cpu"], again["join_cpu"])
    refresh = max(first["refresh_cpu"], again["refresh_cpu"])
    verdicts = [
        f"{what} {figure:.3f} {unit}, below {most:g}: {'reached' if figure < most else 'MISSED'}"
        for what, figure, unit, most in [
            ("joining", join, "CPU-s", MOST_JOIN_SECONDS),
            ("a metadata refresh", refresh, "CPU-s", MOST_REFRESH_SECONDS),
            ("idle", idle["idle_percent"], "% of a core", MOST_IDLE_PERCENT),
        ]
    ]
    rows = [
        ["joining, nothing committed, CPU-s", first["join_cpu"]],
        ["joining, all committed, CPU-s", again["join_cpu"]],
        ["joining, all committed, seconds", again["join_wall"]],
        ["metadata refresh, CPU-s", refresh],
        ["committing all, CPU-s", first["commit_cpu"]],
        ["idle member, % of a core", idle["idle_percent"]],
    ]
    caption = f"{given.partitions} partitions; idle with {given.idle_partitions}, {given.seconds:.0f} s"
    results.print_table("Group", ["what", "figure"], rows, "\n".join([caption, *verdicts]))
    settings = {"partitions": given.partitions, "idle_partitions": given.idle_partitions, "seconds": given.seconds}
    figures = {str(name): figure for name, figure in rows} | {"verdicts": verdicts}
    saved = results.save("group", settings, figures)
    bars = {"CPU seconds": {str(name).removesuffix(", CPU-s"): figure for name, figure in rows if "CPU-s" in str(name)}}
    plot = results.plot_bars("group", caption, "CPU seconds", bars)
    print(f"written: {saved}, {plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
