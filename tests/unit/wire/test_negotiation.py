"""Which versions a broker speaks: asked in our highest version, and again lower where the broker does not have it."""

from __future__ import annotations

import asyncio
import contextlib
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.primitive import i16, i32Timedelta

from ingestd.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    KafkaError,
    ProtocolError,
    UnsupportedVersion,
)
from ingestd.retry import Deadline
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity
from ingestd.wire.negotiation import negotiate
from ingestd.wire.versions import ApiVersions


def listing(
    version: int, error: ErrorCode = ErrorCode.none, *, supported: tuple[Any, ...] = (), **ranges: tuple[int, int]
) -> bytes:
    schema = import_module(f"kio.schema.api_versions.v{version}.response")

    fields: dict[str, Any] = {
        "error_code": error,
        "api_keys": tuple(
            schema.ApiVersion(api_key=i16(int(key[1:])), min_version=i16(low), max_version=i16(high))
            for key, (low, high) in ranges.items()
        ),
    }
    if version >= 1:
        import datetime as dt

        fields["throttle_time"] = i32Timedelta.parse(dt.timedelta(0))
    if version >= 3:
        fields["supported_features"] = supported
        fields["finalized_features"] = (
            schema.FinalizedFeatureKey(name="transaction.version", max_version_level=i16(2), min_version_level=i16(1)),
        )
    return encode_entity(schema.ApiVersionsResponse(**fields))


async def exchange(wired: Any, framed: Any, *answers: bytes) -> Any:
    task = asyncio.create_task(negotiate(wired.connection, Deadline.after(5)))
    for number, body in enumerate(answers):
        while len(wired.requests()) <= number and not task.done():
            await asyncio.sleep(0)
        wired.feed(framed(number, body))
    return await task


def versions_asked(wired: Any) -> list[int]:
    return [int.from_bytes(request[2:4], "big") for request in wired.requests()]


async def test_a_present_day_broker_answers_at_once(wire: Any, framed: Any) -> None:
    wired = wire()
    versions = await exchange(wired, framed, listing(4, k3=(0, 13), k18=(0, 4)))
    assert (versions.ranges, versions.feature("transaction.version")) == ({3: (0, 13), 18: (0, 4)}, 2)
    assert versions_asked(wired) == [4]
    assert b"ingestd" in wired.requests()[0]


async def test_the_embedded_broker_names_what_it_has_not_yet(wire: Any, framed: Any) -> None:
    schema = import_module("kio.schema.api_versions.v4.response")
    feature = schema.SupportedFeatureKey(name="ingestd.embedded", min_version=i16(1), max_version=i16(1))
    answer = listing(4, k3=(0, 13), k18=(0, 4))
    assert not (await exchange(wire(), framed, answer)).embedded
    versions = await exchange(wire(), framed, listing(4, supported=(feature,), k3=(0, 13), k18=(0, 4)))
    assert versions.embedded
    for api, lacking in (
        (Api.end_txn, "no transactions"),
        (Api.create_acls, "no such request"),
    ):
        with pytest.raises(UnsupportedVersion, match=rf"^{api.name}: the embedded broker has {lacking} yet$"):
            versions.pick(api, 0, 1)


async def test_a_broker_without_our_version_is_asked_in_the_highest_it_lists(wire: Any, framed: Any) -> None:
    wired = wire()
    refusal = listing(0, ErrorCode.unsupported_version, k18=(0, 2))
    versions = await exchange(wired, framed, refusal, listing(2, k3=(0, 7), k18=(0, 2)))
    assert versions.ranges[3] == (0, 7)
    assert versions_asked(wired) == [4, 2]


@pytest.mark.parametrize("refusal", [b"\0\x23", b"\0\x23\0\0\0\0"])
async def test_a_broker_that_refuses_without_a_list_is_asked_in_version_0(
    wire: Any, framed: Any, refusal: bytes
) -> None:
    wired = wire()
    versions = await exchange(wired, framed, refusal, listing(0, k3=(0, 2)))
    assert versions.ranges == {3: (0, 2)}
    assert versions_asked(wired) == [4, 0]


async def test_a_broker_that_refuses_every_version_is_an_error_and_no_endless_exchange(wire: Any, framed: Any) -> None:
    lying = listing(0, ErrorCode.unsupported_version, k18=(0, 4))
    wired = wire()
    with pytest.raises(KafkaError) as caught:
        await exchange(wired, framed, lying, lying, lying, lying, lying)
    assert caught.value.code is ErrorCode.unsupported_version
    assert versions_asked(wired) == [4, 3, 2, 1, 0]


async def test_a_refusal_names_the_broker_and_the_error(wire: Any, framed: Any) -> None:
    with pytest.raises(KafkaError, match="broker:9092"):
        await exchange(wire(), framed, listing(4, ErrorCode.cluster_authorization_failed))


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0", b"\0\0\xff\xff\xff\xff\x7f", b"\0\0\x05"])
async def test_an_answer_that_is_none_is_a_protocol_error(wire: Any, framed: Any, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        await exchange(wire(), framed, body)


@given(st.binary(max_size=80), st.sampled_from([b"", b"\0\0", b"\0\x23", listing(4, k3=(0, 13), k18=(0, 4))]))
def test_no_bytes_are_more_than_an_answer_or_a_clear_error(tail: bytes, start: bytes) -> None:
    async def answer(api: int, version: int, parts: Any, *, timeout: float) -> memoryview:
        return memoryview(start + tail)

    connection: Any = SimpleNamespace(host="broker", port=9092, send=answer)
    with contextlib.suppress(KafkaError, ProtocolError):
        assert isinstance(asyncio.run(negotiate(connection, Deadline.after(5))), ApiVersions)


async def test_a_silent_broker_meets_the_deadline_and_a_closing_one_fails_at_once(wire: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        await negotiate(wire().connection, Deadline.after(0.01))
    wired = wire()
    task = asyncio.create_task(negotiate(wired.connection, Deadline.after(5)))
    await asyncio.sleep(0)
    wired.connection.eof_received()
    with pytest.raises(ConnectionLost):
        await task
