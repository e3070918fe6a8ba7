"""Child processes: their end is waited for, and a process that no signal ends holds nobody up."""

import asyncio

import pytest
import structlog

from ingestd.daemon import processes
from ingestd.daemon.processes import ChildProcess
from ingestd.retry import Deadline


@pytest.fixture
async def child():
    """A process that sleeps, and how it ended."""
    ended = asyncio.get_running_loop().create_future()
    process = ChildProcess("timeit", ["-n", "1", "import time; time.sleep(60)"], (), ended.set_result)
    process.ended = ended
    yield process
    ChildProcess.kill(process)
    await asyncio.wait_for(ended, 10)


async def test_a_process_that_does_not_end_by_itself_is_killed_at_the_deadline(child):
    await asyncio.wait_for(child.end(Deadline.after(0), terminate=False), 10)
    assert not child.alive
    assert await child.ended == "killed by SIGKILL"


async def test_a_process_that_the_kernel_holds_is_left_behind_and_named(child, monkeypatch):
    # A worker that reads from a server that is gone: no signal reaches it, and the daemon waited for it for ever.
    monkeypatch.setattr(processes, "KILL_TIMEOUT", 0.01)
    monkeypatch.setattr(child, "kill", lambda: None)
    with structlog.testing.capture_logs() as logs:
        await asyncio.wait_for(child.end(Deadline.after(0), terminate=False), 10)
    assert child.alive
    (said,) = logs
    assert said["pid"] == child.pid
