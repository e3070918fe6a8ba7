"""Child processes: their end is waited for, and a process that no signal ends holds nobody up."""

import asyncio
import subprocess
import sys

import pytest
import structlog

from ingestd.daemon import processes
from ingestd.daemon.processes import ChildProcess, spawn
from ingestd.retry import Deadline


@pytest.fixture
async def child():
    """A process that sleeps, and how it ended."""
    ended = asyncio.get_running_loop().create_future()
    process = ChildProcess(spawn("timeit", ["-n", "1", "import time; time.sleep(60)"], ()), ended.set_result)
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


def run(program: str) -> subprocess.CompletedProcess[str]:
    """A Python program of its own, so that what is forked is no test session."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)


def test_a_forked_child_has_what_it_was_given_and_nothing_else_of_its_parents():
    done = run(
        """if True:
        import os, signal, sys
        from ingestd.daemon.processes import can_fork, fork
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        given, kept = os.pipe()
        open_file = open("/dev/null")
        sys.stderr = None
        assert can_fork()
        def work():
            listed = sorted(map(int, os.listdir("/proc/self/fd")))
            print("descriptors", *(n for n in listed if os.path.exists(f"/proc/self/fd/{n}")), flush=True)
            print("input", os.readlink("/proc/self/fd/0"), flush=True)
            print("session", os.getsid(0) == os.getpid(), "error", sys.stderr is sys.__stderr__, flush=True)
            print("signal", signal.getsignal(signal.SIGTERM).name, flush=True)
            os.write(kept, b"x")
        process = fork(work, [kept])
        print("code", process.wait(), "given", os.read(given, 1), "kept", kept)
        """
    )
    kept = done.stdout.split()[-1]
    assert done.stdout.splitlines() == [
        f"descriptors 0 1 2 {kept}",
        "input /dev/null",
        "session True error True",
        "signal SIG_DFL",
        f"code 0 given b'x' kept {kept}",
    ]
    assert not done.stderr


def test_a_forked_child_that_fails_says_why_and_does_nothing_of_its_parents():
    done = run(
        """if True:
        import atexit, os, signal
        from ingestd.daemon.processes import fork
        atexit.register(print, "the end of", os.getpid())
        try:
            process = fork(lambda: 1 / 0, [])
        finally:
            print("here is", os.getpid())
        print("code", process.wait())
        stuck = fork(signal.pause, [])
        stuck.send_signal(signal.SIGKILL)
        print("code", stuck.wait())
        """
    )
    assert done.stdout.count("here is") == done.stdout.count("the end of") == 1
    assert done.stdout.splitlines()[1:3] == ["code 1", "code -9"]
    assert "ZeroDivisionError" in done.stderr


def test_a_process_with_another_thread_is_not_to_be_forked():
    done = run(
        """if True:
        import threading
        from ingestd.daemon.processes import can_fork
        over = threading.Event()
        print(can_fork())
        other = threading.Thread(target=over.wait)
        other.start()
        print(can_fork())
        over.set()
        other.join()
        """
    )
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("looked_in", [False, True])
def test_a_child_looks_for_modules_in_the_current_directory_only_where_its_parent_does(
    tmp_path, monkeypatch, looked_in
):
    # With a state directory ~/ingestd, and started at home, an embedded broker was looked for in the state.
    (tmp_path / "timeit.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*(["", str(tmp_path)] if looked_in else []), "/nowhere"])
    process = spawn("timeit", ["-n", "1", "-r", "1", "pass"], ())
    assert process.wait() == (7 if looked_in else 0)
