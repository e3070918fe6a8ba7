"""Fixtures of every test. The harnesses, on real Kafka and on the embedded broker, are plugins for all directories."""

import signal

from hypothesis import settings

pytest_plugins = ["pytester", "harness.fixtures", "harness.mirrors", "embedded.fixtures"]

settings.register_profile("stalls", deadline=None)  # by default an example that takes 0.2 s, once, fails its test
settings.load_profile("stalls")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background; the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
