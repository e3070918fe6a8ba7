"""TopicIds: a topic of the target that was deleted is known by its id, once."""

from ingestd.mirror.topic_ids import TopicIds


def test_a_topic_with_another_id_was_deleted_whatever_slow_brokers_say_afterwards():
    ids = TopicIds()
    assert ids.on_target("orders") == ""
    said = ("a", "a", "b", "a", "b", "c")
    assert [ids.look({"orders": one}) for one in said] == [set(), set(), {"orders"}, set(), set(), {"orders"}]
    assert ids.on_target("orders") == "c"


def test_a_topic_that_is_not_named_was_not_deleted():
    ids = TopicIds()
    ids.look({"orders": "a", "bills": "b"})
    assert ids.look({"bills": "b"}) == set()
    assert ids.on_target("orders") == "a"
