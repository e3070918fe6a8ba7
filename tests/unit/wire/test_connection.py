"""One connection: order, correlation, deadlines, limits and the failure of what is in flight; no sockets."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from ingestd.errors import BufferFull, Closed, ConnectionLost, DeadlineExceeded, ProtocolError
from ingestd.wire.apis import Api
from ingestd.wire.requests import metadata
from ingestd.wire.versions import ApiVersions

METADATA_V1 = (int(Api.metadata), 1)
METADATA_V9 = (int(Api.metadata), 9)


def send(wired: Any, api_and_version: tuple[int, int] = METADATA_V1, timeout: float = 5.0, **more: Any) -> Any:
    return wired.connection.send(*api_and_version, [b"body"], timeout=timeout, **more)


async def test_request_is_framed_with_size_key_version_correlation_and_client_id(wire: Any) -> None:
    wired = wire(client_id="me")
    send(wired)
    send(wired, METADATA_V9)
    old, flexible = wired.requests()
    assert old == struct.pack(">hhih", 3, 1, 0, 2) + b"me" + b"body"
    assert flexible == struct.pack(">hhih", 3, 9, 1, 2) + b"me" + b"\0" + b"body"


async def test_parts_of_a_body_reach_the_transport_as_they_are(wire: Any) -> None:
    wired = wire()
    big = memoryview(bytearray(1000))
    wired.connection.send(0, 9, [b"small", big, b"end"], timeout=1)
    assert any(part is big for part in wired.transport.sent)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 16, 4096, 1 << 30])
async def test_answers_are_handed_out_in_order_however_the_bytes_arrive(wire: Any, framed: Any, chunk: int) -> None:
    wired = wire()
    source = random.Random(chunk)
    sizes = [0, 1, 100, 16_370, 16_376, 16_377, 16_384, 17_000, 70_000, 3]
    bodies = [source.randbytes(size) for size in sizes]
    futures = [send(wired, METADATA_V9 if number % 2 else METADATA_V1) for number in range(len(bodies))]
    wired.feed(b"".join(framed(number, body, flexible=bool(number % 2)) for number, body in enumerate(bodies)), chunk)
    assert [bytes(await future) for future in futures] == bodies
    assert wired.connection.in_flight == 0


async def test_an_answer_is_untouched_by_those_that_come_after_it(wire: Any, framed: Any) -> None:
    wired = wire()
    first, second, third, fourth = (send(wired) for _ in range(4))
    wired.feed(framed(0, b"a" * 50) + framed(1, b"b" * 100_000))
    kept, large = await first, await second
    wired.feed(framed(2, b"c" * 50) + framed(3, b"d" * 100_000))
    await third, await fourth
    assert (bytes(kept), bytes(large)) == (b"a" * 50, b"b" * 100_000)


async def test_tagged_fields_in_an_answer_header_are_passed_over(wire: Any) -> None:
    wired = wire()
    future = send(wired, METADATA_V9)
    payload = struct.pack(">i", 0) + b"\x01\x05\x03abc" + b"body"
    wired.feed(struct.pack(">i", len(payload)) + payload)
    assert bytes(await future) == b"body"


async def test_api_versions_answer_has_the_old_header_in_every_version(wire: Any, framed: Any) -> None:
    wired = wire()
    future = send(wired, (int(Api.api_versions), 4))
    wired.feed(framed(0, b"body"))
    assert bytes(await future) == b"body"


async def test_an_answer_out_of_order_ends_the_connection(wire: Any, framed: Any) -> None:
    wired = wire()
    first, second = send(wired), send(wired)
    wired.feed(framed(1, b""))
    for future in (first, second):
        with pytest.raises(ConnectionLost):
            await future
    assert isinstance(wired.connection.error, ProtocolError)
    assert wired.transport.aborted


async def test_an_answer_to_no_request_ends_the_connection(wire: Any, framed: Any) -> None:
    wired = wire()
    wired.feed(framed(0, b""))
    assert isinstance(wired.connection.error, ProtocolError)


@pytest.mark.parametrize("size", [-1, 0, 3, 1_000_001, 0x7FFFFFFF, int.from_bytes(b"HTTP")])
async def test_an_impossible_or_too_large_size_is_refused_before_memory_is_taken_for_it(wire: Any, size: int) -> None:
    wired = wire(answer_limit=1_000_000)
    future = send(wired)
    wired.feed(struct.pack(">i", size) + b"\0" * 4)
    with pytest.raises(ConnectionLost) as caught:
        await future
    assert isinstance(caught.value.__cause__, ProtocolError)
    assert ("it answers with 'HTTP'" in str(caught.value)) == (size == int.from_bytes(b"HTTP"))
    assert wired.connection._frames._large is None


async def test_abort_fails_everything_in_flight_and_nothing_can_be_sent_after(wire: Any) -> None:
    wired = wire()
    futures = [send(wired) for _ in range(3)]
    wired.connection.abort(Closed("enough"))
    assert all(future.done() for future in futures)
    for future in futures:
        with pytest.raises(ConnectionLost, match="enough"):
            await future
    with pytest.raises(Closed):
        send(wired)
    with pytest.raises(Closed):
        await wired.connection.room()


async def test_lost_connection_fails_everything_in_flight_and_close_returns(wire: Any) -> None:
    wired = wire()
    future = send(wired)
    wired.connection.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(ConnectionLost, match="reset by peer"):
        await future
    await wired.connection.close()
    assert wired.connection.closed


async def test_end_of_stream_ends_the_connection_at_once_even_with_data_unsent(wire: Any) -> None:
    wired = wire()
    future = send(wired)
    wired.connection.pause_writing()
    assert wired.connection.eof_received() is False
    with pytest.raises(ConnectionLost, match="broker closed"):
        await future
    assert wired.transport.aborted


async def test_missed_deadline_fails_that_request_and_the_connection_with_the_others(wire: Any) -> None:
    wired = wire()
    late, other = send(wired, timeout=0.01), send(wired, timeout=60)
    with pytest.raises(DeadlineExceeded, match="metadata"):
        await late
    with pytest.raises(ConnectionLost):
        await other
    assert wired.connection.closed


async def test_a_shorter_deadline_behind_a_longer_one_is_kept(wire: Any) -> None:
    wired = wire()
    patient, hasty = send(wired, timeout=60), send(wired, timeout=0.01)
    with pytest.raises(DeadlineExceeded):
        await hasty
    with pytest.raises(ConnectionLost):
        await patient


async def test_many_requests_share_one_timer_and_none_is_left_when_all_are_answered(wire: Any, framed: Any) -> None:
    wired = wire()
    for number in range(100):
        future = send(wired, timeout=0.05)
        timer = wired.connection._timer
        wired.feed(framed(number, b""))
        await future
        assert wired.connection._timer is timer
    timer_fired = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_at(wired.connection._timer_at + 0.01, timer_fired.set_result, None)
    await timer_fired
    assert wired.connection._timer is None
    assert not wired.connection.closed


async def test_cancelled_request_leaves_the_connection_intact(wire: Any, framed: Any) -> None:
    wired = wire()
    first, second = send(wired), send(wired)
    first.cancel()
    wired.feed(framed(0, b"nobody waits") + framed(1, b"yes"))
    assert bytes(await second) == b"yes"


async def test_in_flight_limit_refuses_one_more_and_room_waits_for_an_answer(wire: Any, framed: Any) -> None:
    wired = wire(in_flight_limit=2)
    send(wired), send(wired)
    assert not wired.connection.has_room
    with pytest.raises(BufferFull):
        send(wired)
    waiting = asyncio.create_task(wired.connection.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    wired.feed(framed(0, b""))
    await waiting
    assert wired.connection.has_room


async def test_as_many_are_woken_as_may_send_and_one_that_gives_up_passes_its_turn_on(wire: Any, framed: Any) -> None:
    wired = wire(in_flight_limit=1)
    send(wired)
    waiting = [asyncio.create_task(wired.connection.room()) for _ in range(3)]
    await asyncio.sleep(0)
    wired.feed(framed(0, b""))
    waiting[0].cancel()
    await asyncio.wait(waiting[:2])
    assert [task.done() for task in waiting] == [True, True, False]
    assert waiting[0].cancelled()
    waiting[2].cancel()


async def test_a_full_kernel_is_no_room_until_it_has_taken_everything(wire: Any) -> None:
    wired = wire()
    assert wired.transport.limits == (0, 0)
    wired.connection.pause_writing()
    waiting = asyncio.create_task(wired.connection.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    wired.connection.resume_writing()
    await waiting


async def test_request_without_answer_is_done_when_the_kernel_has_taken_it(wire: Any) -> None:
    wired = wire()
    assert bytes(await send(wired, expect_answer=False)) == b""
    wired.connection.pause_writing()
    unsent = send(wired, expect_answer=False)
    assert not unsent.done()
    wired.connection.resume_writing()
    assert bytes(await unsent) == b""
    assert wired.connection.in_flight == 0


async def test_request_without_answer_that_the_kernel_never_takes_meets_its_deadline(wire: Any) -> None:
    wired = wire()
    wired.connection.pause_writing()
    with pytest.raises(DeadlineExceeded):
        await send(wired, timeout=0.01, expect_answer=False)
    assert wired.connection.closed


async def test_kio_request_waits_for_room_within_its_deadline(wire: Any) -> None:
    wired = wire()
    wired.connection.pause_writing()
    request = metadata([])(ApiVersions({3: (0, 12)}))
    with pytest.raises(DeadlineExceeded):
        await wired.connection.request(request, timeout=0.01)
    assert wired.requests() == []


async def test_bytes_that_are_no_such_answer_are_a_protocol_error_of_that_request_alone(wire: Any, framed: Any) -> None:
    wired = wire()
    request = metadata([])(ApiVersions({3: (0, 1)}))
    task = asyncio.create_task(wired.connection.request(request, timeout=5))
    await asyncio.sleep(0)
    wired.feed(framed(0, b"\x7f\xff\xff\xff"))
    with pytest.raises(ProtocolError):
        await task
    assert not wired.connection.closed


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_bytes_come_requests_end_and_nothing_is_raised_at_the_transport(wire: Any, seed: int) -> None:
    source = random.Random(seed)
    wired = wire(answer_limit=100_000)
    futures = [send(wired, METADATA_V9 if number % 2 else METADATA_V1, timeout=60) for number in range(20)]
    stream = bytearray()
    for number in range(20):
        body = source.randbytes(source.choice([0, 1, 10, 20_000]))
        payload = struct.pack(">i", number) + (b"\0" if number % 2 else b"") + body
        stream += struct.pack(">i", len(payload)) + payload
    for _ in range(source.randrange(1, 4)):
        stream[source.randrange(len(stream))] ^= 1 << source.randrange(8)
    wired.feed(bytes(stream), source.choice([1000, 5000, 1 << 20]))
    wired.connection.connection_lost(None)
    assert all(future.done() for future in futures)
    for future in futures:
        assert future.exception() is None or isinstance(future.exception(), ConnectionLost)


async def test_correlation_ids_wrap_around(wire: Any, framed: Any) -> None:
    wired = wire()
    wired.connection._next_correlation_id = 2**31 - 1
    first, second = send(wired), send(wired)
    wired.feed(framed(2**31 - 1, b"last") + framed(0, b"first"))
    assert (bytes(await first), bytes(await second)) == (b"last", b"first")
