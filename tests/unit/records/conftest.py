"""The twins of the hot loops, and bytes to try them on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from twins import COMPILED, PLAIN

# How fast an example runs says how busy the machine is, nothing of the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(params=[COMPILED, PLAIN], ids=lambda module: module.NAME)
def twin(request):
    """The module of hot loops under test: every rule holds for both."""
    return request.param


@pytest.fixture(params=["compiled", "plain"])
def either(request, monkeypatch):
    """Let the whole package run on one twin."""
    module = {"compiled": COMPILED, "plain": PLAIN}[request.param]
    for name in ("lines", "builder", "decode", "lz4_frames", "snappy_frames"):
        users = __import__(f"ingestd.records.{name}", fromlist=["_"])
        for function in ("allocate", "encode_lines", "scatter_lines", "parse_records", "make_records"):
            if hasattr(users, function):
                monkeypatch.setattr(users, function, getattr(module, function))
    return module
