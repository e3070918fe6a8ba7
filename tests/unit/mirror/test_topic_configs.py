"""Topic configs: whatever is changed on both sides, the target has what the source sets, and its own."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.client.admin import AlterOperation, ConfigEntry, ConfigsDescription, ConfigSource
from ingestd.errors import ErrorCode, KafkaError
from ingestd.mirror import topic_configs
from ingestd.mirror.topic_configs import NOT_COPIED, TopicConfigs

KEYS = ["retention.ms", "segment.ms", NOT_COPIED[0], "flush.ms"]
VALUES = st.sampled_from(["1", "2", None])


class Cluster:
    """A cluster's configurations of topics, in memory."""

    def __init__(self, **topics):
        self.topics, self.asked, self.refusal = topics, [], None

    async def describe_configs(self, resources, *, timeout):
        self.asked.append([one.name for one in resources])
        return [
            ConfigsDescription(
                one,
                {
                    key: ConfigEntry(key, value, ConfigSource.topic, False, False)
                    for key, value in self.topics[one.name].items()
                },
            )
            for one in resources
        ]

    async def incremental_alter_configs(self, changes, *, timeout):
        for resource, wanted in changes.items():
            for change in wanted if self.refusal is None else ():
                if change.operation is AlterOperation.delete:
                    del self.topics[resource.name][change.name]
                else:
                    self.topics[resource.name][change.name] = change.value
        return [SimpleNamespace(resource=resource, error=self.refusal) for resource in changes]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS), VALUES)))
async def test_the_target_has_what_the_source_sets_and_its_own(steps):
    source, target = Cluster(a={}), Cluster(b={})
    configs = TopicConfigs("m", ["flush.*"])
    own = {}
    for at_source, key, value in steps:
        there = source.topics["a"] if at_source else target.topics["b"]
        before = dict(source.topics["a"])
        there.pop(key, None)
        if value is not None:
            there[key] = value
        await configs.follow({"b": "a"}, ["b"], source, target)
        followed = key not in NOT_COPIED and not key.startswith("flush")
        if not at_source and not (followed and key in source.topics["a"]):
            own.pop(key, None)
            if value is not None:
                own[key] = value
        elif at_source and followed and (value is not None or key in before):
            own.pop(key, None)
        copied = {key: value for key, value in source.topics["a"].items() if key in ("retention.ms", "segment.ms")}
        assert target.topics["b"] == own | copied


async def test_a_refusal_is_tried_again(caplog):
    source, target = Cluster(a={"retention.ms": "1"}), Cluster(b={})
    configs = TopicConfigs("m", [])
    target.refusal = KafkaError(ErrorCode.topic_authorization_failed, "b")
    for _ in range(2):
        await configs.follow({"b": "a"}, ["b"], source, target)
    target.refusal = None
    await configs.follow({"b": "a"}, ["b"], source, target)
    assert target.topics == {"b": {"retention.ms": "1"}}
    source.topics["a"].clear()
    await configs.follow({"b": "a"}, ["b"], source, target)
    assert target.topics == {"b": {}}


async def test_many_topics_have_their_turns(monkeypatch):
    monkeypatch.setattr(topic_configs, "AT_ONCE", 3)
    source, target = Cluster(**{name: {} for name in "abcdefg"}), Cluster(**{name: {} for name in "abcdefg"})
    configs = TopicConfigs("m", [])
    for _ in range(3):
        await configs.follow({name: name for name in "abcdefg"}, "abcdefg", source, target)
    assert ["".join(asked) for asked in target.asked] == ["abc", "def", "gab"]


@pytest.mark.parametrize("topics", [{}, {"a": "a"}])
async def test_fewer_topics_than_a_turn_are_asked_for_once(topics):
    source, target = Cluster(a={}), Cluster(a={})
    await TopicConfigs("m", []).follow(topics, topics, source, target)
    assert source.asked == [["a"]] * len(topics)
