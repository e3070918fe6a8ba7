"""Random heartbeats, classic and of KIP-848, amid joins, syncs and leaves: answered as a real Kafka answers them.

What differs, and is not drawn here:

- The leader of a classic group leaves, and two members or more are left. Kafka takes any of them as the next leader.
- Subscriptions by a pattern. Kafka finds their topics in the background (`test_embedded_consumer_groups.py`).
- The assignor "uniform", which spreads in another order (`test_server_assignors.py`).
"""

from __future__ import annotations

import dataclasses
import random
import re
import select
import time
import uuid
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from embedded.cluster import QUICK_GROUPS
from embedded.process import BrokerProcess
from embedded.raw import RawClient
from harness.cluster import KafkaCluster

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_response, encode_entity, skip_response_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 20
MINUTE = timedelta(minutes=1)
STEPS = 60
FIRST_STEPS = 7
NEW = 0
LEAVES = -1
LEAVES_FOR_NOW = -2
JOINING, SYNCING = "PreparingRebalance", "CompletingRebalance"


def of(api: Api, version: int, kind: str, /, **values: Any) -> Any:
    """A part of a request, with those of `values` that this version has."""
    entity = getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)
    known = {field.name for field in dataclasses.fields(entity)}
    return entity(**{name: value for name, value in values.items() if name in known})


class Walk:
    """What is done depends on the seed, and on what was answered. `said` has both, with names for ids.

    `codes`: with which heartbeats were answered.
    """

    def __init__(self, servers: str, name: str, seed: int) -> None:
        self.said: list[tuple[str, Any]] = []
        self.codes: set[ErrorCode] = set()
        self.group = name
        self.rng = random.Random(seed)
        self.port = int(servers.rpartition(":")[2])
        self.client = RawClient(self.port)
        self.names: dict[Any, str] = {name: "G"}
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._until_coordinated()

    def _until_coordinated(self) -> None:
        """Kafka makes the topic of the groups in the background."""
        find = of(Api.find_coordinator, 2, "FindCoordinatorRequest", key=self.group, key_type=0)
        beat = of(Api.heartbeat, 2, "HeartbeatRequest", group_id=self.group, generation_id=1, member_id="x")
        end = time.monotonic() + SECONDS
        while self.client.ask(beat).error_code is not ErrorCode.unknown_member_id:
            assert time.monotonic() < end, "the coordinator did not come"
            self.client.ask(find)
            time.sleep(0.02)

    def close(self) -> None:
        self.client.socket.close()

    def note(self, what: str, answer: Any) -> None:
        self.said.append((what, self._alike(answer)))

    def _alike(self, value: Any) -> Any:
        """Ids by their names, arrays in one order, and of a text only that there is one."""
        if isinstance(value, tuple):
            return tuple(sorted((self._alike(one) for one in value), key=repr))
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            if "error_message" in fields:
                fields["error_message"] = fields["error_message"] is not None
            return tuple((name, self._alike(one)) for name, one in fields.items())
        if isinstance(value, str) and value not in self.names:
            return re.sub(r"\w*-[0-9a-f]{8}-[0-9a-f-]{27}", "ID", value)  # of a member that was replaced before it knew
        return self.names.get(value, value) if isinstance(value, str | uuid.UUID) else value

    def chosen(self, **weights: int) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]


@dataclasses.dataclass(eq=False)
class Classic:
    """A member of a classic group, with a connection of its own, because joins and syncs are held back."""

    name: str
    client: RawClient
    version: int
    instance: str | None
    id: str = ""
    generation: int = -1
    leader: str = ""
    members: tuple[str, ...] = ()
    waiting: Any = None


class ClassicWalk(Walk):
    """Up to three members of one group. Two of them may be static."""

    steps = STEPS
    leaves = 1

    def __init__(self, servers: str, name: str, seed: int) -> None:
        super().__init__(servers, name, seed)
        self._members: list[Classic] = []
        self._gone: list[Classic] = []
        self._leader: Classic | None = None
        self._ids_before: set[str] | None = None
        self._count = 0

    def close(self) -> None:
        super().close()
        for member in (*self._members, *self._gone):
            member.client.socket.close()

    def run(self) -> list[tuple[str, Any]]:
        for _ in range(self.steps):
            steps: dict[Callable[[], None], int] = {self._beat: 8, self._sync_wrongly: 1, self._leave_wrongly: 1}
            if len(self._members) < 3:
                steps[self._join] = 3
            if self._idle:
                steps |= {self._join_again: 2, self._sync: 6, self._leave: self.leaves}
            if any(member.instance for member in self._members):
                steps[self._replace] = 1
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            step()
            self._settle()
            for member in self._members:
                self._ask_beat(f"{member.name} beats", 4, member.id, member.generation, member.instance)
        self._delete()
        return self.said

    def _delete(self) -> None:
        """What is told of the group, and whether it can be deleted. Kafka lists what its log has, which is behind."""
        asked: dict[str, Any] = {"groups": (self.group,), "include_authorized_operations": False}
        described = self.client.ask(of(Api.describe_groups, 6, "DescribeGroupsRequest", **asked))
        (state,) = [group.group_state for group in described.groups]
        end = time.monotonic() + SECONDS
        listed: list[Any] = []
        while [group.group_state for group in listed] != ([] if state == "Dead" else [state]):
            assert time.monotonic() < end, (listed, state)
            request = of(Api.list_groups, 5, "ListGroupsRequest", states_filter=(), types_filter=())
            listed = [group for group in self.client.ask(request).groups if group.group_id == self.group]
        self.note("listed", tuple(listed))
        deleted = self.client.ask(of(Api.delete_groups, 2, "DeleteGroupsRequest", groups_names=(self.group,)))
        self.note("deleted", deleted)
        self.note("state", self._described()[0])

    @property
    def _idle(self) -> list[Classic]:
        return [member for member in self._members if member.waiting is None]

    # Steps.

    def _new(self, instance: str | None) -> Classic:
        self._count += 1
        version = self.rng.choice([5, 9] if instance else [0, 3, 5, 9])
        return Classic(f"m{self._count}", RawClient(self.port), version, instance)

    def _join(self) -> None:
        free = {"i0", "i1"} - {member.instance for member in self._members}
        member = self._new(self.rng.choice([None, None, *sorted(free)]))
        if member.version >= 4 and member.instance is None:
            told = member.client.ask(self._join_request(member))
            member.id = told.member_id
            self.names[member.id] = member.name
            self.note(f"{member.name} asks for an id", told)
            if self.rng.random() < 0.3:
                self._ask_beat(f"{member.name} beats before it joins", 4, member.id, -1, None)
        self._members.append(member)
        self._send(member, self._join_request(member))

    def _replace(self) -> None:
        """A static member comes back, and does not know the id that it had."""
        before = self.rng.choice([member for member in self._members if member.instance])
        self._members.remove(before)
        self._gone.append(before)
        member = self._new(before.instance)
        if self._leader is before:
            self._leader = member  # it may not be told
        self._ids_before = self._described()[1]
        self._members.append(member)
        self._send(member, self._join_request(member))

    def _join_again(self) -> None:
        member = self.rng.choice(self._idle)
        self._send(member, self._join_request(member))

    def _join_request(self, member: Classic) -> Any:
        protocol = of(Api.join_group, member.version, "JoinGroupRequestProtocol", name="range", metadata=b"m")
        return of(
            Api.join_group, member.version, "JoinGroupRequest", group_id=self.group, session_timeout=MINUTE,
            rebalance_timeout=MINUTE, member_id=member.id, group_instance_id=member.instance,
            protocol_type="consumer", protocols=(protocol,),
        )  # fmt: skip

    def _sync(self) -> None:
        member = self.rng.choice(self._idle)
        version = self.rng.choice([0, 3, 5])
        assignments = tuple(
            of(
                Api.sync_group,
                version,
                "SyncGroupRequestAssignment",
                member_id=one,
                assignment=self.names[one].encode(),
            )
            for one in (member.members if member.leader == member.id else ())
        )
        request = of(
            Api.sync_group, version, "SyncGroupRequest", group_id=self.group, generation_id=member.generation,
            member_id=member.id, group_instance_id=member.instance if version >= 3 else None, assignments=assignments,
            protocol_type="consumer", protocol_name="range",
        )  # fmt: skip
        self._send(member, request)

    def _sync_wrongly(self) -> None:
        member_id, generation, instance = self._wrong()
        if any((one.id, one.generation) == (member_id, generation) for one in self._members):
            return  # it might wait for the leader
        request = of(
            Api.sync_group, 3, "SyncGroupRequest", group_id=self.group, generation_id=generation, member_id=member_id,
            group_instance_id=instance, assignments=(),
        )  # fmt: skip
        self.note(f"sync of {self._told(member_id, generation, instance)}", self.client.ask(request))

    def _leave(self) -> None:
        member = self.rng.choice(self._idle)
        if member is self._leader and len(self._members) > 2:
            return
        version = self.rng.choice([0, 2, 3, 5])
        by_instance = member.instance is not None and version >= 3
        member_id = "" if by_instance and self.rng.random() < 0.5 else member.id
        self._members.remove(member)
        self._gone.append(member)
        self._ask_leave(member.name, version, member_id, member.instance if by_instance else None)

    def _leave_wrongly(self) -> None:
        # Without an id, an instance is whoever has it now.
        known = [*(one for one in self._gone[-2:] if one.id), Classic("nobody", self.client, 0, "i7", "nobody")]
        member = self.rng.choice(known)
        if any(member.instance == one.instance for one in self._members):
            self._ask_leave(f"{member.name} (gone)", 3, member.id, member.instance)
        else:
            self._ask_leave(f"{member.name} (gone)", self.rng.choice([0, 3, 5]), member.id, None)

    def _ask_leave(self, name: str, version: int, member_id: str, instance: str | None) -> None:
        one = None
        if version >= 3:
            one = of(Api.leave_group, version, "MemberIdentity", member_id=member_id, group_instance_id=instance)
        request = of(
            Api.leave_group, version, "LeaveGroupRequest", group_id=self.group, member_id=member_id, members=(one,)
        )  # fmt: skip
        self.note(f"{name} leaves v{version}", self.client.ask(request))

    def _beat(self) -> None:
        version = self.rng.choice(range(5))
        member_id, generation, instance = self._wrong()
        group = {"ours": self.group, "nowhere": "nowhere", "none": ""}[self.chosen(ours=12, nowhere=1, none=1)]
        what = f"beat of {self._told(member_id, generation, instance)} in {self.names.get(group, group)} v{version}"
        self._ask_beat(what, version, member_id, generation, instance, group)

    def _wrong(self) -> tuple[str, int, str | None]:
        """Of a heartbeat or a sync: each part right or wrong, by itself. Members are named that are gone."""
        known = [*self._members, *self._gone[-2:]]
        member = self.rng.choice(known) if known else Classic("nobody", self.client, 0, None)
        member_id = {"own": member.id, "unknown": "nobody", "none": ""}[self.chosen(own=8, unknown=1, none=1)]
        generation = member.generation + int(self.chosen(**{"0": 6, "1": 1, "-1": 1}))
        instance = {"own": member.instance, "none": None, "other": "i0", "unknown": "i7"}[
            self.chosen(own=8, none=2, other=1, unknown=1)
        ]
        return member_id, generation, instance

    def _told(self, member_id: str, generation: int, instance: str | None) -> str:
        return f"{self.names.get(member_id, member_id)!r}, generation {generation}, instance {instance}"

    def _ask_beat(
        self, what: str, version: int, member_id: str, generation: int, instance: str | None, group: str | None = None
    ) -> None:
        request = of(
            Api.heartbeat, version, "HeartbeatRequest", group_id=self.group if group is None else group,
            generation_id=generation, member_id=member_id, group_instance_id=instance,
        )  # fmt: skip
        answer = self.client.ask(request)
        self.codes.add(answer.error_code)
        self.note(what, answer)

    # Answers that may wait.

    def _send(self, member: Classic, request: Any) -> None:
        member.client.send(request.__api_key__, request.__version__, [encode_entity(request)])
        member.waiting = request
        self.note(f"{member.name} sends {type(request).__name__} v{request.__version__} of {member.generation}", None)

    def _settle(self) -> None:
        """Until all is answered that can be, and the group has what was sent."""
        end = time.monotonic() + SECONDS
        answered: dict[str, Any] = {}
        while True:
            self._collect(answered)
            state, ids = self._described()
            waiting = [one for one in self._members if one.waiting is not None]
            joining = [one for one in waiting if one.waiting.__api_key__ == Api.join_group]
            syncing = [one for one in waiting if one not in joining]
            replacing = ids == self._ids_before or any(one.waiting is not None for one in self._gone)
            unnamed = [one for one in joining if not one.id]  # the group gives an id to each as it takes it in
            taken = all(one.id in ids for one in joining if one.id) and len(unnamed) <= len(ids - self.names.keys())
            settled = {
                JOINING: taken and not syncing and len(joining) < len(ids),
                SYNCING: not joining and not any(one.leader == one.id for one in syncing),
            }.get(state, not joining and not syncing)
            if settled and not replacing:
                break
            assert time.monotonic() < end, "\n".join(map(str, [*self.said, answered, state, ids, waiting]))
        self._ids_before = None
        for name in sorted(answered):
            self.note(f"{name} is answered", answered[name])
        self.note("state", (state, len(ids)))

    def _described(self) -> tuple[str, set[str]]:
        """The state of the group, and the ids of its members."""
        asked = {"groups": (self.group,), "include_authorized_operations": False}
        (group,) = self.client.ask(of(Api.describe_groups, 5, "DescribeGroupsRequest", **asked)).groups
        return group.group_state, {member.member_id for member in group.members}

    def _collect(self, answered: dict[str, Any]) -> None:
        waiting = {one.client.socket: one for one in (*self._members, *self._gone) if one.waiting is not None}
        for ready in select.select(list(waiting), [], [], 0.002)[0] if waiting else ():
            member = waiting[ready]
            answer = member.client.receive()
            assert answer is not None, "the broker closed the connection"
            request, member.waiting = member.waiting, None
            api, version = request.__api_key__, request.__version__
            response = decode_response(request, bytes(skip_response_header(api, version, answer)))
            answered[member.name] = response
            if api == Api.join_group and response.error_code is ErrorCode.none:
                member.id, member.generation, member.leader = (
                    response.member_id,
                    response.generation_id,
                    response.leader,
                )
                member.members = tuple(one.member_id for one in response.members)
                self.names[member.id] = member.name
                self._leader = member if member.leader == member.id else self._leader


class BriefClassicWalk(ClassicWalk):
    """Members often leave a group that is new, before the first sync, or after it was told an id."""

    steps = FIRST_STEPS
    leaves = 8

    def _leave_wrongly(self) -> None:
        """Or one that was told an id, and has not joined."""
        told = self._new(None)
        told.version = 5
        answer = told.client.ask(self._join_request(told))
        self.names[answer.member_id] = told.name
        self.note(f"{told.name} asks for an id", answer)
        self._gone.append(told)
        self._ask_leave(told.name, 3, answer.member_id, None)


@dataclasses.dataclass(eq=False)
class Member:
    """A member of a KIP-848 group. `left`: a static one that said that it comes back."""

    id: str
    instance: str | None
    topics: tuple[str, ...]
    epoch: int = NEW
    before: int = NEW
    assigned: tuple[Any, ...] = ()
    left: bool = False


class ConsumerWalk(Walk):
    """Up to four members of one group. Two of them may be static. They read two topics."""

    def __init__(self, servers: str, name: str, seed: int) -> None:
        super().__init__(servers, name, seed)
        self._topics = (f"{name}-a", f"{name}-b")
        wanted = [NewTopic(topic, partitions, 1) for topic, partitions in zip(self._topics, (5, 3), strict=True)]
        for made in self.admin.create_topics(wanted).values():
            made.result(SECONDS)
        self._members: list[Member] = []
        self._gone: list[Member] = []
        self._count = 0
        self._until_known()
        self.rng.seed(seed)

    def _until_known(self) -> None:
        end = time.monotonic() + SECONDS
        told = self.client.metadata(*self._topics, create=False).topics
        while any(topic.error_code for topic in told):
            assert time.monotonic() < end, told
            time.sleep(0.02)
            told = self.client.metadata(*self._topics, create=False).topics
        self.names |= {topic.topic_id: topic.name.removeprefix(self.group) for topic in told}
        # Kafka's coordinator hears of topics later than those who answer Metadata.
        probe = Member("probe", None, self._topics)
        self._ask_to_join(probe, f"{self.group}-probe")
        while len(probe.assigned) < len(self._topics):
            assert time.monotonic() < end, probe
            time.sleep(0.02)
            self._ask("probes", probe, group_id=f"{self.group}-probe", member_epoch=probe.epoch)
        self.said.clear()

    def run(self) -> list[tuple[str, Any]]:
        for _ in range(STEPS):
            steps: dict[Callable[[], None], int] = {self._ask_wrongly: 2, self._beat_of_gone: 1, self._beat_classic: 1}
            if len(self._members) < 4:
                steps[self._join] = 3
            if self._here:
                steps |= {self._beat: 12, self._leave: 1, self._subscribe: 1}
            if any(member.instance for member in self._members):
                steps[self._come_back] = 2
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            step()
        return self.said

    @property
    def _here(self) -> list[Member]:
        return [member for member in self._members if not member.left]

    def _new(self, instance: str | None) -> Member:
        self._count += 1
        member = Member(str(uuid.UUID(int=self.rng.getrandbits(128))), instance, self._subscription())
        self.names[member.id] = f"m{self._count}"
        return member

    def _subscription(self) -> tuple[str, ...]:
        return self.rng.choice(
            [self._topics, self._topics, self._topics[:1], self._topics[1:], (f"{self.group}-none",)]
        )

    def _join(self) -> None:
        free = {"i0", "i1"} - {member.instance for member in self._members}
        self._ask_to_join(self._new(self.rng.choice([None, None, *sorted(free)])))

    def _come_back(self) -> None:
        """Under another id. If the member before has not left, that is refused."""
        before = self.rng.choice([member for member in self._members if member.instance])
        member = self._new(before.instance)
        if self._ask_to_join(member):
            self._members.remove(before)
            self._gone.append(before)

    def _ask_to_join(self, member: Member, group: str | None = None) -> bool:
        told = self._ask(
            f"joins as instance {member.instance}", member, group_id=group or self.group, member_epoch=NEW,
            rebalance_timeout=MINUTE, subscribed_topic_names=member.topics, server_assignor="range",
            topic_partitions=(),
        )  # fmt: skip
        if told.error_code is ErrorCode.none and group is None:
            self._members.append(member)
        return told.error_code is ErrorCode.none

    def _beat(self) -> None:
        """Mostly with its own epoch, at times a wrong one. It owns nothing, or the partitions that it was given."""
        member = self.rng.choice(self._here)
        epochs = {"its": member.epoch, "former": member.before, "next": member.epoch + 1, "new": NEW}
        kind = self.chosen(its=16, former=2, next=1, new=1)
        owned = {"nothing": None, "all": member.assigned, "none": ()}[self.chosen(nothing=4, all=6, none=1)]
        fields: dict[str, Any] = {"member_epoch": epochs[kind], "topic_partitions": self._owned(owned)}
        if kind == "new":
            fields |= {"rebalance_timeout": MINUTE, "topic_partitions": (), "subscribed_topic_names": member.topics}
        instance = {"its": member.instance, "none": None, "i0": "i0", "unknown": "i7"}[
            self.chosen(its=20, none=1, i0=1, unknown=1)
        ]
        self._ask(f"beats with its {kind} epoch, instance {instance}", member, instance_id=instance, **fields)

    def _owned(self, assigned: tuple[Any, ...] | None) -> Any:
        if assigned is None:
            return None
        return tuple(
            of(Api.consumer_group_heartbeat, 1, "TopicPartitions", topic_id=topic, partitions=numbers)
            for topic, numbers in assigned
        )

    def _subscribe(self) -> None:
        member = self.rng.choice(self._here)
        member.topics = self._subscription()
        self._ask("subscribes", member, member_epoch=member.epoch, subscribed_topic_names=member.topics)

    def _leave(self) -> None:
        member = self.rng.choice(self._here)
        epoch = self.rng.choice([LEAVES, LEAVES_FOR_NOW])
        if self._ask(f"leaves with {epoch}", member, member_epoch=epoch).error_code is ErrorCode.none:
            if member.instance is not None and epoch == LEAVES_FOR_NOW:
                member.left = True
            else:
                self._members.remove(member)
                self._gone.append(member)

    def _beat_of_gone(self) -> None:
        """Of one that has left, also for now, or that never was."""
        known = [*self._gone[-3:], *(one for one in self._members if one.left), Member("nobody", None, (), 5)]
        member = self.rng.choice(known)
        epoch = self.rng.choice([member.epoch or 1, member.epoch + 1, LEAVES, LEAVES_FOR_NOW])
        self._ask(f"is gone, with epoch {epoch}", member, member_epoch=epoch)

    def _beat_classic(self) -> None:
        """A heartbeat of the other protocol."""
        member = self.rng.choice([*self._members, Member("nobody", None, (), 5)])
        request = of(
            Api.heartbeat, 4, "HeartbeatRequest", group_id=self.group, generation_id=member.epoch,
            member_id=member.id, group_instance_id=None,
        )  # fmt: skip
        self.note(f"classic beat of {self.names.get(member.id, member.id)}", self.client.ask(request))

    def _ask_wrongly(self) -> None:
        """Something is missing, or can not be."""
        member = self.rng.choice([*self._members, Member("somebody", None, self._topics)])
        complete = {"member_epoch": NEW, "rebalance_timeout": MINUTE, "topic_partitions": ()}
        complete |= {"subscribed_topic_names": self._topics}
        topic = next(one for one, name in self.names.items() if name == "-a")
        wrong: dict[str, dict[str, Any]] = {
            "no group": {"group_id": ""}, "blank group": {"group_id": " "}, "unknown group": {"group_id": "nowhere"},
            "no member": {"member_id": ""}, "no instance": {"instance_id": ""}, "no rack": {"rack_id": ""},
            "epoch -3": {"member_epoch": -3}, "unknown assignor": {"server_assignor": "best"},
            "no timeout": complete | {"rebalance_timeout": timedelta(milliseconds=-1)},
            "no topics": complete | {"subscribed_topic_names": None}, "no owned": complete | {"topic_partitions": None},
            "owned": complete | {"topic_partitions": self._owned(((topic, (0,)),))},
            "leaves without instance": {"member_epoch": LEAVES_FOR_NOW, "instance_id": None},
        }  # fmt: skip
        what = self.rng.choice(list(wrong))
        self._ask(f"asks wrongly: {what}", member, **({"member_epoch": member.epoch or 5} | wrong[what]))

    def _ask(self, what: str, member: Member, **fields: Any) -> Any:
        version = self.rng.choice([0, 1])
        usual = {
            "group_id": self.group, "member_id": member.id, "instance_id": member.instance, "rack_id": None,
            "rebalance_timeout": timedelta(milliseconds=-1), "subscribed_topic_names": None,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        asked = usual | fields
        if version == 0 and asked["topic_partitions"]:
            version = 1  # its parts are of that version
        answer = self.client.ask(of(Api.consumer_group_heartbeat, version, "ConsumerGroupHeartbeatRequest", **asked))
        self.codes.add(answer.error_code)
        if answer.error_code is ErrorCode.none and answer.member_epoch >= 0:
            if answer.member_epoch != member.epoch:
                member.before, member.epoch = member.epoch, answer.member_epoch
            if answer.assignment is not None:
                member.assigned = tuple((one.topic_id, one.partitions) for one in answer.assignment.topic_partitions)
        self.note(f"{self.names.get(member.id, member.id)} {what} v{version}", answer)
        return answer


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A real Kafka that makes targets at once, as ours does, and the embedded broker."""
    at_once = {
        "group.consumer.min.assignment.interval.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.assignor.offload.enable": "false",
    }
    with (
        KafkaCluster(tmp_path_factory.mktemp("kafka") / "cluster", settings=at_once) as kafka,
        BrokerProcess(tmp_path_factory.mktemp("embedded"), *QUICK_GROUPS) as broker,
    ):
        yield kafka.servers, broker.servers


def compare(walk: type[ClassicWalk | ConsumerWalk], brokers: tuple[str, str], seed: int) -> set[ErrorCode]:
    """Walk on both. Returns the codes of the heartbeats."""
    said, codes = [], set()
    for servers in brokers:
        walking = walk(servers, f"{walk.__name__}-{seed}", seed)
        try:
            said.append(walking.run())
        finally:
            walking.close()
        codes |= walking.codes
    theirs, ours = said
    different = next((at for at, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
    told = (
        [] if different is None else [f"seed {seed}", *theirs[:different], "Kafka:", theirs[different], ours[different]]
    )
    assert different is None, "\n".join(map(str, told))
    assert len(theirs) == len(ours)
    return codes


def test_random_heartbeats_of_classic_members_are_answered_as_kafka_answers_them(brokers: tuple[str, str]) -> None:
    codes = set().union(*(compare(ClassicWalk, brokers, seed) for seed in range(20)))
    assert codes == {
        ErrorCode.none, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id, ErrorCode.invalid_group_id,
    }  # fmt: skip


def test_new_groups_that_are_left_soon_are_told_and_deleted_as_by_kafka(brokers: tuple[str, str]) -> None:
    said = [one for seed in range(40) for one in compare(BriefClassicWalk, brokers, seed)]
    assert ErrorCode.unknown_member_id in said


def test_random_heartbeats_of_kip_848_are_answered_as_kafka_answers_them(brokers: tuple[str, str]) -> None:
    codes = set().union(*(compare(ConsumerWalk, brokers, seed) for seed in range(30)))
    assert codes == {
        ErrorCode.none, ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id,
        ErrorCode.unreleased_instance_id, ErrorCode.invalid_request, ErrorCode.group_id_not_found,
        ErrorCode.unsupported_assignor,
    }  # fmt: skip
