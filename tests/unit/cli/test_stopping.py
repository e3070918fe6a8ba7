"""Signals that end what runs in a plain loop: the first one is told to it, the second one ends the process."""

from __future__ import annotations

import os
import signal

import pytest
from structlog.testing import capture_logs

from ingestd.cli.stopping import until_signalled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_said_once_and_after_it_signals_do_what_they_do_by_default(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with capture_logs() as said, until_signalled() as stopped:
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        assert stopped()
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == [signal.SIG_DFL] * 2
    assert said == [{"event": "signal", "signal": number.name, "log_level": "info"}]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
