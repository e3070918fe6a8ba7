"""`help(…)` of what users begin with suffices: it says what each is for, and the examples in it run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import ingestd

if TYPE_CHECKING:
    from embedded.process import BrokerProcess

NAMES = ("AsyncProducer", "SyncProducer", "Consumer", "ConsumerGroup", "SyncConsumerGroup", "Client", "ClusterAdmin")
ADDRESS = "kafka-1:9092"


def example(name: str) -> str:
    """The program in a class's docstring."""
    text = inspect.getdoc(getattr(ingestd, name)) or ""
    program = text.partition("Example:\n")[2].split("\n\n", 1)[0]
    assert ADDRESS in program
    return textwrap.dedent(program)


def public(name: str) -> dict[str, Any]:
    """What a user may call or look at."""
    cls = getattr(ingestd, name)
    return {each: inspect.getattr_static(cls, each) for each in dir(cls) if not each.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_is_public_is_documented(name: str) -> None:
    cls = getattr(ingestd, name)
    assert [each for each, value in public(name).items() if not inspect.getdoc(value)] == []
    assert inspect.getdoc(cls.__init__) not in (None, inspect.getdoc(object.__init__))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_uses_public_names_alone(name: str) -> None:
    tree = ast.parse(example(name))
    classes = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id[0].isupper()}
    assert name in classes
    assert classes <= set(ingestd.__all__)


@pytest.mark.parametrize(
    "name", sorted({*NAMES} - {"ConsumerGroup", "SyncConsumerGroup"})
)  # they read until they are stopped
async def test_an_example_runs(embedded: BrokerProcess, capsys: pytest.CaptureFixture[str], name: str) -> None:
    program = example(name).replace(ADDRESS, embedded.servers)
    async with ingestd.Client([embedded.servers]) as client, ingestd.AsyncProducer(client) as producer:
        await producer.send_and_wait("orders", b"there")
    code = compile(program, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, {each: getattr(ingestd, each) for each in ingestd.__all__})
    if inspect.iscoroutine(running):
        await running
    assert capsys.readouterr().out
