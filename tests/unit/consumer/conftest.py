"""Record batches as a broker would keep them.

Tests run in simulated time: what they say about seconds holds however the machine stalls.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Protocol

import pytest
from simulated_clock import SimulatedClockLoop

from ingestd.records.batch import patch_offset, patch_producer, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression

if TYPE_CHECKING:
    from collections.abc import Sequence

_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21
_CONTROL = 0x20
WITH_THREADS = {"test_sync_calls.py"}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """Threads take their time all the same: where they take part, it is the machine's."""
    return {"loop": asyncio.SelectorEventLoop if item.path.name in WITH_THREADS else SimulatedClockLoop}


class MakeBatch(Protocol):
    def __call__(
        self,
        base_offset: int,
        values: Sequence[bytes | None],
        *,
        producer_id: int = -1,
        transactional: bool = False,
        keys: Sequence[bytes | None] | None = None,
        control: bool = False,
        codec: str = "none",
        leader_epoch: int = 1,
    ) -> bytes: ...


@pytest.fixture
def make_batch() -> MakeBatch:
    def make(
        base_offset: int,
        values: Sequence[bytes | None],
        *,
        producer_id: int = -1,
        transactional: bool = False,
        keys: Sequence[bytes | None] | None = None,
        control: bool = False,
        codec: str = "none",
        leader_epoch: int = 1,
    ) -> bytes:
        builder = BatchBuilder(1 << 20)
        for index, value in enumerate(values):
            key = None if keys is None else keys[index]
            builder.append(key, value, [("n", b"%d" % index)], 1_000 + base_offset + index)
        batch = memoryview(builder.build(Compression.parse(codec)))
        patch_producer(batch, producer_id, 0 if producer_id >= 0 else -1, -1, transactional=transactional)
        if control:
            (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
            _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | _CONTROL)
            seal(batch)
        patch_offset(batch, base_offset, leader_epoch)
        return bytes(batch)

    return make


@pytest.fixture
def make_marker(make_batch: MakeBatch) -> object:
    """make_marker(offset, producer_id, commit=…): the control batch that ends a transaction."""

    def make(offset: int, producer_id: int, *, commit: bool) -> bytes:
        key = Struct(">hh").pack(0, 1 if commit else 0)
        return make_batch(
            offset,
            [Struct(">hi").pack(0, 5)],
            keys=[key],
            producer_id=producer_id,
            transactional=True,
            control=True,
        )

    return make
