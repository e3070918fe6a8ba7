"""Lease: what it ends and what the next one opens again."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from ingestd.mirror.lease import Lease


@pytest.fixture
async def made():
    opened, over = [], asyncio.Event()

    def reopen(held):
        lease.forget(held.name)  # as the runner does
        opened.append(held.name)

    lease = Lease(over.set, reopen)
    yield SimpleNamespace(lease=lease, opened=opened, over=over)
    lease.close()


def partition(name, with_producer=0):
    return SimpleNamespace(name=name, bytes=with_producer)


async def test_without_one_it_never_ends_and_a_renewed_one_ends_by_itself(made):
    await asyncio.sleep(0)
    assert not made.over.is_set()
    made.lease.renew(time.monotonic() + 60)
    made.lease.renew(time.monotonic() + 0.005)
    async with asyncio.timeout(5):
        await made.over.wait()
    assert time.monotonic() >= made.lease.until


async def test_the_next_one_opens_again_what_has_nothing_with_the_producer(made):
    quiet, busy = partition("quiet"), partition("busy", 100)
    for one in (quiet, busy):
        made.lease.suspend(one)
    made.lease.renew(time.monotonic() - 1)
    assert made.opened == []
    made.lease.renew(time.monotonic() + 60)
    assert made.opened == ["quiet"]
    busy.bytes = 0
    made.lease.resume(busy)
    assert made.opened == ["quiet", "busy"]


async def test_what_ends_after_the_lease_waits_for_the_next_one(made):
    held = partition("orders-0", 100)
    made.lease.suspend(held)
    made.lease.renew(time.monotonic() - 1)
    held.bytes = 0
    made.lease.resume(held)
    assert made.opened == []
    assert made.lease.suspended("orders-0") is held


async def test_what_was_forgotten_or_opened_anew_meanwhile_is_not_opened_again(made):
    old, new = partition("orders-0", 100), partition("orders-0", 100)
    made.lease.suspend(old)
    made.lease.suspend(new)
    old.bytes = 0
    made.lease.resume(old)
    assert made.lease.forget("orders-0")
    assert not made.lease.forget("orders-0")
    new.bytes = 0
    made.lease.resume(new)
    assert made.opened == []
