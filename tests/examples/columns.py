"""Read a topic as Arrow columns, with no Python object for a record: `python columns.py BOOTSTRAP TOPIC`."""

import asyncio
import sys

import pyarrow as pa
import pyarrow.compute as pc

from ingestd import BinaryColumn, Client, Columns, Consumer


def binary(column: BinaryColumn, count: int) -> pa.Array:
    """Arrow's view of a column; nothing is copied."""
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=column.nulls)


def table(columns: Columns) -> pa.Table:
    """One record batch."""
    offsets = pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.offsets)])
    return pa.table({"offset": offsets, "value": binary(columns.values, columns.count)})


async def main(bootstrap: str, topic: str) -> None:
    """Collect the topic up to its present end, and let Arrow look at it."""
    async with Client([bootstrap]) as client, Consumer(client) as consumer:
        tables = []
        for partition in await consumer.partitions(topic):
            reading = await consumer.consume_partition(topic, partition, "earliest", "latest")
            tables += [table(columns) async for columns in reading.columns()]
    whole = pa.concat_tables(tables)
    longest = pc.max(pc.binary_length(whole["value"])).as_py()
    print(f"{whole.num_rows} records, the longest value has {longest} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
