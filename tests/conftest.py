"""Fixtures of every test. The harnesses, on real Kafka and on the embedded broker, are plugins for all directories."""

import signal

pytest_plugins = ["harness.fixtures", "embedded.fixtures"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background; the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
