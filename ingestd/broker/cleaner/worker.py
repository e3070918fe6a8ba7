"""The child process of one cleaning: reads a `Cleaning` on standard input, answers with `Cleaned` on standard output.

It ends when standard input does, so it never outlives its broker. Whatever it leaves then, the next start removes.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Final

from ingestd.broker.cleaner.job import Failed
from ingestd.broker.cleaner.log_cleaning import clean_log
from ingestd.errors import IngestdError

__all__ = ["main"]

_NICENESS: Final = 5
"""So that the broker is answered for first where the cores are busy."""


def main() -> None:
    """Clean one log."""
    # A terminal's interrupt goes to the broker too, which ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    cleaning = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the broker, over a pipe of its own
    threading.Thread(target=_end_with_broker, daemon=True).start()
    try:
        for cleaned in clean_log(cleaning):
            _answer(cleaned)
    except (OSError, IngestdError) as error:
        _answer(Failed(str(error)))


def _answer(answer: object) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _end_with_broker() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
