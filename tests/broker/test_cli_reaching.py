"""Tools while no broker is there: they say so, go on, and are done when one comes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

SECONDS = 60


@pytest.mark.parametrize(
    ("tool", "written"),
    [
        (["topics", "list", "--output", "json"], b'{"there":1}\n'),
        (["topics", "describe", "there", "--output", "table"], b"there: 1 partition\n  0: offsets 0 to 1, leader 1, "),
        (["produce", "-t", "there"], b""),
        (["consume", "-t", "there", "-n", "1", "-f", "%s"], b"first"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_tool_says_which_broker_it_does_not_reach_and_goes_on(
    broker_process: Callable[..., BrokerProcess], tool: list[str], written: bytes
) -> None:
    """Half a minute without a word looked like a hang."""
    broker = broker_process()
    command = [sys.executable, "-m", "ingestd", *tool, "--brokers", broker.servers]
    send = [sys.executable, "-m", "ingestd", "produce", "-t", "there", "--brokers", broker.servers]
    subprocess.run(send, input=b"first", timeout=SECONDS, check=True)
    broker.kill()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert said == f"ingestd: {broker.servers}: Connection refused; still trying\n"
        assert process.poll() is None
        broker.start()
        output, more = process.communicate(timeout=SECONDS)
    assert (process.returncode, more) == (0, b"")
    assert output.startswith(written)


def test_a_reader_says_that_the_broker_it_reads_from_is_gone(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    command = [sys.executable, "-m", "ingestd"]
    topic = ["-t", "there", "--brokers", broker.servers]
    subprocess.run([*command, "produce", *topic], input=b"first", timeout=SECONDS, check=True)
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "consume", *topic, "-n", "2"], stdout=pipe, stderr=pipe) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"first\n"
        broker.kill()
        assert reader.stderr.readline().decode() == f"ingestd: {broker.servers}: Connection refused; still trying\n"
        broker.start()
        subprocess.run([*command, "produce", *topic], input=b"second", timeout=SECONDS, check=True)
        assert reader.stdout.readline() == b"second\n"
        assert reader.wait(SECONDS) == 0
        assert reader.stderr.read() == b""
