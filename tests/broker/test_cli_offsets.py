"""Where `ingestd consume` starts reading: an offset that is not in the log is an error that says what is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

SECONDS = 60


async def delete_before(servers: str, topic: str, offset: int) -> None:
    async with Client([servers]) as client:
        (outcome,) = await ClusterAdmin(client).delete_records({(topic, 0): offset})
    assert outcome.error is None


@pytest.fixture
def consume(embedded: BrokerProcess, new_topic: str) -> Callable[..., tuple[int, str, str]]:
    """Read a topic whose partition 0 reaches from 1 to 3, and 1 from 0 to 1; exit code, records, what went wrong."""
    command = [sys.executable, "-m", "ingestd"]
    topic = ["-t", new_topic, "--brokers", embedded.servers]
    for partition, lines in ("0", "a\nb\nc\n"), ("1", "d\n"):
        subprocess.run(
            [*command, "produce", *topic, "-p", partition], input=lines, text=True, timeout=SECONDS, check=True
        )
    asyncio.run(delete_before(embedded.servers, new_topic, 1))

    def consume(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*command, "consume", *topic, "-f", "%p:%o ", *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return consume


def out_of(topic: str, partition: int, offset: int, first: int, end: int) -> str:
    return (
        f"ingestd: OFFSET_OUT_OF_RANGE (1): {topic}-{partition}, offset {offset}: "
        f"its first offset is {first}, its end {end}\n"
    )


@pytest.mark.parametrize(
    ("offset", "until"), [(0, ["-e"]), (4, ["-e"]), (4, ["-e", "--committed"]), (4, []), (2**63 - 1, ["-n", "0"])]
)
def test_an_offset_outside_of_the_log_is_an_error_that_says_where_the_log_is(
    consume: Callable[..., tuple[int, str, str]], new_topic: str, offset: int, until: list[str]
) -> None:
    """With `-e` an offset beyond the end was an empty read, which says that there are no records."""
    assert consume("-p", "0", "-o", str(offset), *until) == (1, "", out_of(new_topic, 0, offset, 1, 3))


def test_the_end_is_an_empty_read(consume: Callable[..., tuple[int, str, str]]) -> None:
    assert consume("-p", "0", "-o", "3", "-e") == (0, "", "")
    assert consume("-p", "0", "-o", "2", "-e") == (0, "0:2 ", "")
    assert consume("-p", "0", "-o", "1", "-e") == (0, "0:1 0:2 ", "")


def test_of_several_partitions_those_that_lack_the_offset_are_named_and_none_is_read(
    consume: Callable[..., tuple[int, str, str]], new_topic: str
) -> None:
    """Half of what was asked for, and an exit code that said it was all."""
    assert consume("-o", "2", "-e") == (1, "", out_of(new_topic, 1, 2, 0, 1))
    both = out_of(new_topic, 0, 9, 1, 3) + out_of(new_topic, 1, 9, 0, 1)
    assert consume("-o", "9", "-e") == (1, "", both)
    code, records, said = consume("-o", "1", "-e")
    assert (code, sorted(records.split()), said) == (0, ["0:1", "0:2"], "")
