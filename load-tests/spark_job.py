"""Queries in one Spark session: a line of JSON on the standard input asks for each, and a line of JSON says it is done.

It runs under two PySparks: with Spark's own connector (`kafka`), and with ingestd. `constant` and `ready` are sources
that fetch nothing: what Spark itself takes. It imports no other module here.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _session(form: str, jars: str, master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.driver.memory", "2g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if form == "ingestd":
        from ingestd.spark import register  # noqa: PLC0415 - the other PySpark has none

        register(spark)
    if form == "constant":
        spark.dataSource.register(_constant())
    if form == "ready":
        spark.dataSource.register(_ready())
    return spark


def _constant() -> type[Any]:  # noqa: C901 - classes, not branches
    """A Python source that does nothing: one constant record batch, four rows, in each of so many micro-batches."""
    import pyarrow as pa  # noqa: PLC0415 - all is in this function, which is sent by value
    from pyspark.sql.datasource import (  # noqa: PLC0415
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow  # noqa: PLC0415

    def rows() -> Any:
        yield pa.RecordBatch.from_pydict({"value": [b"v"] * 4}, pa.schema([("value", pa.binary())]))

    class Batch(DataSourceReader):
        def partitions(self) -> Any:
            return [InputPartition(0)]

        def read(self, partition: Any) -> Any:  # noqa: ARG002
            return rows()

    class Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, most: int) -> None:
            self.most = most

        def initialOffset(self) -> Any:  # noqa: N802
            return {"at": 0}

        def getDefaultReadLimit(self) -> Any:  # noqa: N802
            return ReadMaxRows(4)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass

        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802, ARG002
            return {"at": min(start["at"] + 4, self.most)}

        def partitions(self, start: Any, end: Any) -> Any:  # noqa: ARG002
            return [InputPartition(0)]

        def read(self, partition: Any) -> Any:  # noqa: ARG002
            return rows()

    class Constant(DataSource):
        @classmethod
        def name(cls) -> str:
            return "constant"

        def schema(self) -> str:
            return "value BINARY"

        def reader(self, schema: Any) -> Any:  # noqa: ARG002
            return Batch()

        def streamReader(self, schema: Any) -> Any:  # noqa: N802, ARG002
            return Stream(int(self.options["most"]))

    return Constant


def _ready() -> type[Any]:  # noqa: C901 - classes, not branches
    """A Python source of the rows that ingestd's would yield, which lie ready in files: no source can do with less."""
    from pathlib import Path  # noqa: PLC0415 - all is in this function, which is sent by value

    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.datasource import (  # noqa: PLC0415
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow  # noqa: PLC0415

    def files(path: str) -> list[str]:
        return sorted(map(str, Path(path).glob("*.arrow")))

    def batches(file: str, start: int = 0, end: int = sys.maxsize) -> Any:
        rows = pa.ipc.open_file(pa.memory_map(file))
        at = 0
        for number in range(rows.num_record_batches):
            batch = rows.get_batch(number)
            first, last = max(start - at, 0), min(end - at, batch.num_rows)
            at += batch.num_rows
            if first < last:
                yield batch.slice(first, last - first)

    class Rows(InputPartition):
        def __init__(self, file: str, start: int, end: int) -> None:
            self.file, self.start, self.end = file, start, end

    class Batch(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def partitions(self) -> Any:
            return [Rows(file, 0, sys.maxsize) for file in files(self.path)]

        def read(self, partition: Any) -> Any:
            return batches(partition.file, partition.start, partition.end)

    class Stream(Batch, DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, path: str, limit: int) -> None:
            super().__init__(path)
            self.limit = limit // len(files(path))
            self.most = max(sum(batch.num_rows for batch in batches(file)) for file in files(path))

        def initialOffset(self) -> Any:  # noqa: N802
            return {"at": 0}

        def getDefaultReadLimit(self) -> Any:  # noqa: N802
            return ReadMaxRows(self.limit)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass

        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802, ARG002
            return {"at": min(start["at"] + self.limit, self.most)}

        def partitions(self, start: Any, end: Any) -> Any:  # type: ignore[override]
            return [Rows(file, start["at"], end["at"]) for file in files(self.path)]

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> Any:
            from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

            return from_arrow_schema(pa.ipc.open_file(pa.memory_map(files(self.options["path"])[0])).schema)

        def reader(self, schema: Any) -> Any:  # noqa: ARG002
            return Batch(self.options["path"])

        def streamReader(self, schema: Any) -> Any:  # noqa: N802, ARG002
            return Stream(self.options["path"], int(self.options["limit"]))

    return Ready


def _keep(options: dict[str, str], path: str) -> None:
    """Put the rows that ingestd's source yields into files, one for each partition."""
    import pyarrow as pa  # noqa: PLC0415 - the other PySpark has none

    from ingestd.spark.source import IngestdDataSource  # noqa: PLC0415

    source = IngestdDataSource(options)
    reader = source.reader(source.schema())
    for number, partition in enumerate(reader.partitions()):
        batches = list(reader.read(partition))
        with pa.OSFile(f"{path}/{number}.arrow", "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)


def _options(asked: dict[str, Any]) -> dict[str, str]:
    rows = {"rows": "batches"} if asked["query"] == "batches" else {}
    limit = {"maxOffsetsPerTrigger": str(asked["limit"])} if "limit" in asked else {}
    if "most" in asked:
        return {"most": str(asked["most"])}
    if "ready" in asked:
        return {"path": asked["ready"], "limit": str(asked.get("limit", 0))}
    return {"kafka.bootstrap.servers": asked["servers"], "subscribe": asked["topic"]} | rows | limit


def _query(spark: SparkSession, form: str, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["query"] == "stream":
        options = _options(asked) | {"startingOffsets": "earliest"}
        rows = spark.readStream.format(form).options(**options).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", asked["path"])
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        told = [(each.numInputRows, each.durationMs["triggerExecution"] / 1_000) for each in query.recentProgress]
        return {"rows": sum(rows for rows, _ in told), "batches": told}
    if asked["query"] == "keep":
        _keep(_options(asked), asked["path"])
        return {}
    rows = spark.read.format(form).options(**_options(asked)).load()
    if asked["query"] == "count":
        return {"rows": rows.count()}
    _write(rows, form, asked)
    return {}


def _write(rows: DataFrame, form: str, asked: dict[str, Any]) -> None:
    if asked["query"] == "noop":
        rows.write.format("noop").mode("overwrite").save()
    elif asked["query"] == "parquet":
        rows.write.parquet(asked["path"])
    else:
        batches = asked["query"] == "batches"
        columns = ("batch", "partition") if batches else ("key", "value")
        writer = rows.select(*columns).write.format(form).mode("append").option("topic", asked["target"])
        writer = writer.option("kafka.bootstrap.servers", asked["servers"])
        writer.options(**({"rows": "batches"} if batches else {"kafka.compression.type": "lz4"})).save()


def main() -> int:
    form, jars, master = sys.argv[1:]
    spark = _session(form, jars, master)
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        begun = time.monotonic()
        done = _query(spark, form, json.loads(line))
        print(json.dumps(done | {"wall": time.monotonic() - begun}), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
