"""TLS and accounts by the names of Spark's Kafka connector, on a real Kafka; and no secret in what Spark shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness.secured import PASSWORD, USER

if TYPE_CHECKING:
    from harness.secured import SecuredCluster
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def options(cluster: SecuredCluster, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "kafka.bootstrap.servers": cluster.listener("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{MODULES[mechanism]} required username="{USER}" password="{quoted}";',
        "kafka.ssl.truststore.location": str(cluster.certificates.ca),
        "kafka.ssl.truststore.type": "PEM",
    }


def shown(spark: SparkSession) -> str:
    """All that Spark keeps of its queries for its page and its log of events."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = [executions.apply(number) for number in range(executions.size())]
    return "\n".join(f"{one.description()} {one.details()} {one.physicalPlanDescription()}" for one in found)


@pytest.mark.parametrize("mechanism", list(MODULES))
def test_rows_are_written_and_read_with_an_account_that_no_plan_shows(
    spark: SparkSession, secured_kafka: SecuredCluster, mechanism: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = options(secured_kafka, mechanism) | {"topic": secured_kafka.create_topic()}
    spark.range(100).selectExpr("CAST(id AS string) AS value").write.format("ingestd").mode("append").options(
        **given
    ).save()
    given["subscribe"] = given.pop("topic")
    frame = spark.read.format("ingestd").options(**given).load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(100))
    frame.explain(mode="extended")
    plans = shown(spark) + capfd.readouterr().out
    assert "ingestd" in plans
    assert PASSWORD not in plans
    assert "LoginModule" not in plans


def test_a_wrong_password_is_refused_without_showing_it(spark: SparkSession, secured_kafka: SecuredCluster) -> None:
    given = options(secured_kafka, "SCRAM-SHA-512", "not-this-one")
    with pytest.raises(Exception, match="SCRAM-SHA-512") as caught:
        spark.read.format("ingestd").options(**given).option("subscribe", "t").load().collect()
    assert "not-this-one" not in str(caught.value)
