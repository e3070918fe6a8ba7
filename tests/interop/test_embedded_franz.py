"""franz-go's own test suite against the embedded broker. Its module comes with its tests from the Go proxy."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from embedded.process import BrokerProcess
from embedded.secured import add_user
from harness.go_peers import MODULE
from harness.programs import program
from harness.secured import PASSWORD, USER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 50_000
SUITE_SECONDS = 420
BUILD_SECONDS = 170
SHARE_GROUPS = {
    "TestConsumeRegexShareSkipsInternal",
    "TestShareGroup",
    "TestShareGroupAckOnClose",
    "TestShareGroupETL",
    "TestShareGroupOffsetsAdmin",
}
NOTHING_TO_TEST = {"TestIssueProduceBrokerTooOldFailsRecords"}
"""It wants a broker that says that it has no Produce v2. Kafka 4 says that it has, for librdkafka, and so do we."""
OF_COORDINATORS = {"TestConsumeRegex", "TestGroupETL", "TestGroupSimple", "TestIssue523", "TestTxnEtl"}


@pytest.fixture(scope="module")
def authenticating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose clients authenticate by SCRAM: the suite asks for a second one."""
    broker = BrokerProcess(tmp_path_factory.mktemp("authenticating"), "--sasl", "SCRAM-SHA-256")
    add_user(broker.data, USER, PASSWORD)
    with broker:
        yield broker


@pytest.mark.peers
@pytest.mark.timeout(SUITE_SECONDS + BUILD_SECONDS + 30)
def test_franz_gos_own_tests_pass_and_only_those_of_share_groups_are_left_out(
    embedded: BrokerProcess, authenticating: BrokerProcess, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "KGO_SEEDS": embedded.servers,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_UNSAFE": "1",
        "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}",
        "KGO_TEST_SCRAM_SEEDS": authenticating.servers,
    }
    output = tmp_path / "suite.jsonl"
    with output.open("wb") as file:
        subprocess.run(
            [program("go"), "test", "-json", "-count=1", "-vet=off", f"-timeout={SUITE_SECONDS}s", PACKAGE],
            cwd=MODULE, env=environment, stdout=file, stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS + BUILD_SECONDS, check=False,
        )  # fmt: skip
    outcomes, said = read(output)
    failed = {test for test in outcomes if outcomes[test] not in {"pass", "skip"}}
    assert failed == set(), "\n".join(f"{test}:\n{said[test]}" for test in sorted(failed)) + f"\nAll of it: {output}"
    passed = {test for test, outcome in outcomes.items() if outcome == "pass"}
    assert len(passed) > 140, f"the suite did not run: {output.read_text()[-2000:]}"
    assert passed >= OF_COORDINATORS
    assert outcomes.keys() - passed == SHARE_GROUPS | NOTHING_TO_TEST


def read(output: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The outcome of each test, and what it said. One that was begun and not ended has the outcome "run"."""
    outcomes: dict[str, str] = {}
    said: dict[str, str] = {}
    for line in output.read_text().splitlines():
        if not line.startswith("{"):
            continue  # what the compiler says
        event = json.loads(line)
        test = event.get("Test", "")
        if "/" in test or not test:
            continue
        if event["Action"] in {"run", "pass", "fail", "skip"}:
            outcomes[test] = event["Action"]
        elif event["Action"] == "output":
            said[test] = said.get(test, "") + event["Output"]
    return outcomes, said
