"""`python -m ingestd.testing.forking DESCRIPTOR`: forks brokers for tests.

It reads messages from a socket. Each is the arguments of a broker as JSON, with two descriptors: the socket that the
broker and the test have for each other, and the file that gets its log. It ends when the other end is closed. Its
brokers end when the tests close theirs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Final

import uvloop  # noqa: F401 - brokers need it; imported before they are forked

from ingestd.broker.__main__ import main as run_broker

_LARGEST_MESSAGE: Final = 64 * 1024


def main(channel: socket.socket) -> None:
    """Fork a broker for each message, until the other end is closed."""
    # Nobody here waits for brokers. The kernel forgets them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(channel, _LARGEST_MESSAGE, 2)
        if not message:
            return
        if os.fork() == 0:
            channel.close()
            _be_a_broker(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _be_a_broker(arguments: list[str], channel: int, log: int) -> None:
    """Never returns: the frames above, and what runs at exit, belong to the process that was forked."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 2)
        os.write(channel, f"pid {os.getpid()}\n".encode())
        code = run_broker([*arguments, "--ready-fd", str(channel), "--parent-fd", str(channel)])
    except BaseException:  # noqa: BLE001 - as above
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
