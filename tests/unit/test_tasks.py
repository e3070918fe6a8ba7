"""Whoever starts a task ends it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from ingestd.errors import Closed
from ingestd.tasks import TaskOwner, end_task


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append("ended")


async def test_no_task_outlives_close() -> None:
    owner = TaskOwner()
    ended: list[str] = []
    tasks = [owner.start(forever(ended), "t") for _ in range(3)]
    await asyncio.sleep(0)
    await owner.close()
    await owner.close()
    assert all(task.cancelled() for task in tasks)
    assert ended == ["ended"] * 3


async def test_nothing_starts_after_close() -> None:
    owner = TaskOwner()
    await owner.close()
    with pytest.raises(Closed, match="late"):
        owner.start(forever([]), "late")


async def test_an_error_is_reported_once_and_swallowed_never() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    crashes: list[BaseException] = []
    owner = TaskOwner(crashes.append)
    await asyncio.wait([owner.start(fail(), "t")])
    await asyncio.sleep(0)
    assert [str(error) for error in crashes] == ["broken"]

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    owner = TaskOwner()
    await asyncio.wait([owner.start(fail(), "t")])
    await asyncio.sleep(0)
    assert [str(context["exception"]) for context in reported] == ["broken"]


async def test_a_task_may_close_its_own_owner() -> None:
    owner = TaskOwner()
    ended: list[str] = []
    other = owner.start(forever(ended), "other")
    closing = owner.start(owner.close(), "closing")
    await closing
    assert other.cancelled()


async def test_finish_waits_for_work_that_ends_by_itself() -> None:
    owner = TaskOwner()
    release = asyncio.Event()
    task = owner.start(release.wait(), "t")
    finishing = asyncio.create_task(owner.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    release.set()
    await finishing
    assert task.done()
    assert not task.cancelled()
    with pytest.raises(Closed):
        owner.start(forever([]), "late")


async def test_close_with_a_timeout_waits_no_longer_for_what_swallows_its_cancellation_and_names_it() -> None:
    async def swallow() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    owner, release = TaskOwner(), asyncio.Event()
    other = owner.start(forever([]), "other")
    task = owner.start(swallow(), "stubborn")
    await asyncio.sleep(0)
    assert list(await owner.close(0.05)) == [task]
    assert other.cancelled()
    release.set()
    assert list(await owner.close()) == []
    assert task.done()


@pytest.mark.parametrize("how", ["it runs", "it fails as it is cancelled", "it has failed"])
async def test_a_task_that_is_of_no_use_any_more_ends_and_its_error_is_no_news(how: str) -> None:
    news: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: news.append(context))

    async def work() -> None:
        if how == "it has failed":
            raise ValueError
        try:
            await asyncio.Event().wait()
        finally:
            if how == "it fails as it is cancelled":
                raise ValueError

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    await end_task(task)
    assert task.done()
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert news == []
