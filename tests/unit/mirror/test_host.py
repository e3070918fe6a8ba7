"""HostMember: each heartbeat that was answered is a lease; what was tried again is said until the next generation."""

import time
from types import SimpleNamespace

import pytest

from ingestd.errors import ConnectionLost, IngestdError
from ingestd.mirror.host import SESSION_TIMEOUT, HostMember


def test_a_lease_counts_from_when_the_heartbeat_was_sent():
    leases = []
    member = HostMember("g", leases.append)
    before = time.monotonic()
    member.heartbeat("g", 2.0)
    member.joined("g", 1, 0.5)
    after = time.monotonic()
    for until, seconds in zip(leases, (2.0, 0.5), strict=True):
        assert before <= until + seconds - SESSION_TIMEOUT <= after


def test_what_was_tried_again_is_told_until_it_has_joined():
    member = HostMember("g", lambda until: None)
    member.retried("g", "joining", ConnectionLost("away"))
    assert member.why == "; joining: away"
    member.joined("g", 1, 0.0)
    assert member.why == ""


def test_a_membership_that_has_ended_says_why_and_a_living_one_is_told_the_topics():
    member = HostMember("g", lambda until: None)
    heard = []
    member.membership = SimpleNamespace(
        end=None, subscribe=heard.append, progressed=lambda: heard.append("progress was made")
    )
    member.subscribe(["orders"])
    assert heard == [["orders"], "progress was made"]
    member.membership.end = SimpleNamespace(error=IngestdError("FENCED_INSTANCE_ID"))
    with pytest.raises(IngestdError, match="group g: FENCED_INSTANCE_ID"):
        member.subscribe(["orders"])
