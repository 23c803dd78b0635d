"""The table of clients: what a heartbeat changes, who leaves with a link, who expires
(docs/protocol/broker-api.md §8)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from loop_lines import lines_of_slices

from triomq_protocol.requests import ConsumerData, SubscriptionData
from triomq_server.broker.tables.clients import (
    CHANNELS_PER_SLICE,
    EXPIRY_S,
    MOST_BYTES,
    ClientChannel,
    ClientTable,
    kept_bytes,
)
from triomq_server.wire import to_the_end


class Wire:
    """Represents a link: the table compares links with each other, and their hosts."""

    def __init__(self, host: int = 1) -> None:
        self.peer_host = bytes([10, 0, 0, host, 0, 0, 0, 1])


def channel(link: Any = None, client_id: str = "c1", at_s: float = 0) -> ClientChannel:
    return ClientChannel(
        link=cast("Any", link or Wire()),
        client_id=client_id,
        language="JAVA",
        version=407,
        last_update_ms=0,
        last_update_s=at_s,
    )


def subscribing(*topics: str, version: int = 1, group: str = "CG") -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=f"v{version}", sub_version=version) for topic in topics
        ],
    )


@pytest.fixture
def table() -> ClientTable:
    return ClientTable()


def test_a_new_member_changes_the_group_and_its_next_heartbeat_does_not(table: ClientTable) -> None:
    member = channel()
    assert table.register_consumer(subscribing("A"), member)
    assert not table.register_consumer(subscribing("A"), member)
    assert table.register_consumer(subscribing("A"), channel(client_id="c2"))
    assert table.consumers["CG"].client_ids() == ["c1", "c2"]


def test_a_topic_added_or_removed_changes_the_group_for_all_members(table: ClientTable) -> None:
    first, second = channel(), channel(client_id="c2")
    table.register_consumer(subscribing("A", "B"), first)
    table.register_consumer(subscribing("A", "B"), second)
    assert table.register_consumer(subscribing("A"), second)
    assert table.subscription("CG", "B") is None
    assert table.register_consumer(subscribing("A", "B"), first)
    assert table.subscription("CG", "B") is not None


@pytest.mark.parametrize(("offered", "kept"), [(6, "v6"), (5, "v5"), (4, "v5")])
def test_only_a_greater_version_replaces_a_subscription(table: ClientTable, offered: int, kept: str) -> None:
    member = channel()
    table.register_consumer(subscribing("A", version=5), member)
    assert not table.register_consumer(subscribing("A", version=offered), member)
    found = table.subscription("CG", "A")
    assert found is not None
    assert found.sub_string == kept


def test_the_latest_heartbeat_describes_the_group(table: ClientTable) -> None:
    table.register_consumer(subscribing("A"), channel())
    other = subscribing("A")
    other.consume_type, other.message_model = "CONSUME_ACTIVELY", "BROADCASTING"
    other.consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
    table.register_consumer(other, channel(client_id="c2"))
    group = table.consumers["CG"]
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        "CONSUME_ACTIVELY",
        "BROADCASTING",
        "CONSUME_FROM_FIRST_OFFSET",
    )


def test_a_group_without_members_is_removed_with_its_subscriptions(table: ClientTable) -> None:
    member = channel()
    table.register_consumer(subscribing("A"), member)
    assert table.unregister_consumer("CG", member.link)
    assert not table.unregister_consumer("CG", member.link)
    assert table.consumers == {}
    assert table.subscription("CG", "A") is None


def test_a_closed_link_names_the_groups_that_have_others_left(table: ClientTable) -> None:
    link = Wire()
    table.register_consumer(subscribing("A", group="alone"), channel(link))
    table.register_consumer(subscribing("A", group="shared"), channel(link))
    table.register_consumer(subscribing("A", group="shared"), channel(client_id="c2"))
    table.register_producer("PG", channel(link))
    assert table.drop_link(cast("Any", link)) == ["shared"]
    assert list(table.consumers) == ["shared"]
    assert table.producers == {}
    assert table.producer_channel("c1") is None


def test_clients_expire_after_two_silent_minutes_each_link_named_once(table: ClientTable) -> None:
    link, lively = Wire(), channel(client_id="c2", at_s=1)
    table.register_consumer(subscribing("A"), channel(link, at_s=0))
    table.register_producer("PG", channel(link, at_s=0))
    table.register_producer("PG", lively)
    assert to_the_end(table.expire(EXPIRY_S)) == []
    assert to_the_end(table.expire(EXPIRY_S + 1)) == [link]
    assert table.consumers == {}
    assert list(table.producer_channels("PG")) == [lively.link]


def test_very_many_silent_clients_are_removed_in_slices(table: ClientTable) -> None:
    link = Wire()
    for number in range(5000):
        table.register_producer(f"p{number}", channel(link))
        table.register_consumer(subscribing("A", group=f"c{number}"), channel(link))
    slices = lines_of_slices(table.expire(EXPIRY_S + 1))
    assert max(slices) < 60_000
    assert not table.consumers
    assert not table.producers
    assert (table.memberships, table.subscriptions) == (0, 0)


def test_a_client_whose_heartbeat_comes_between_the_slices_is_kept(table: ClientTable) -> None:
    link = Wire()
    for number in range(CHANNELS_PER_SLICE):
        table.register_producer(f"p{number}", channel(at_s=EXPIRY_S))
    table.register_consumer(subscribing("A"), channel(link))
    slices = table.expire(EXPIRY_S + 1)
    next(slices)
    table.register_consumer(subscribing("A"), channel(link, at_s=EXPIRY_S))
    assert to_the_end(slices) == []
    assert list(table.consumers["CG"].channels) == [link]


def test_groups_of_one_member_share_a_table_until_another_joins(table: ClientTable) -> None:
    first, second = channel(), channel(client_id="c2")
    for name in ("A", "B", "C"):
        table.register_consumer(subscribing("T", group=name), first)
    a, b, c = (table.consumers[name] for name in ("A", "B", "C"))
    assert a.channels is b.channels is c.channels
    table.register_consumer(subscribing("T", group="A"), second)
    assert (a.client_ids(), b.client_ids()) == (["c1", "c2"], ["c1"])
    assert table.unregister_consumer("B", first.link)
    assert "B" not in table.consumers
    assert c.client_ids() == ["c1"]
    assert table.unregister_consumer("A", first.link)
    assert a.client_ids() == ["c2"]
    renewed = channel(first.link, at_s=5)
    table.register_consumer(subscribing("T", group="A"), renewed)
    table.register_consumer(subscribing("T", group="C"), renewed)
    assert list(a.channels.values()) == [second, renewed]
    assert list(c.channels.values()) == [renewed]
    assert table.memberships == 3


@pytest.mark.parametrize("what", ["groups", "subscriptions", "members"])
def test_links_with_most_groups_of_the_host_with_most_go_when_there_are_too_many(table: ClientTable, what: str) -> None:
    innocent, neighbour = Wire(host=2), Wire()
    table.register_consumer(subscribing("A"), channel(innocent))
    table.register_producer("PG", channel(neighbour))
    strangers = [Wire() for _ in range(40 if what != "members" else 100)]
    closed: list[Any] = []
    for number, stranger in enumerate(strangers):
        for group in range(500):
            if what == "groups":
                table.register_producer(f"{number}-{group}", channel(stranger))
            elif what == "members":
                table.register_producer(f"{group}", channel(stranger))
        if what == "subscriptions":
            topics = [f"t{topic}" for topic in range(500)]
            table.register_consumer(subscribing(*topics, group=f"{number}"), channel(stranger))
        closed += table.crowding()
    assert 0 < len(closed) < len(strangers) / 6
    assert not {innocent, neighbour} & set(closed)
    for link in closed:
        table.drop_link(link)
    assert table.crowding() == []


def long_text(size_bytes: int, *topics: str, group: str = "CG", version: int = 1) -> ConsumerData:
    data = subscribing(*topics, group=group, version=version)
    for subscription in data.subscription_data_set:
        subscription.sub_string = "x" * size_bytes
    return data


def test_the_bytes_of_subscriptions_are_those_that_are_kept(table: ClientTable) -> None:
    first, second = channel(), channel()
    table.register_consumer(long_text(10_000, "A", "B"), first)
    table.register_consumer(long_text(90_000, "A", "B"), second)
    assert 20_000 < table.kept_bytes < 21_000, "its version is not greater"
    table.register_consumer(long_text(30_000, "A", version=2), second)
    assert 30_000 < table.kept_bytes < 31_000
    assert table.bytes_with(first.link, {}) < 21_000 < table.bytes_with(second.link, {}) < 31_000
    assert table.bytes_with(second.link, {"CG": 5}) == 5
    table.drop_link(second.link)
    assert table.kept_bytes > 30_000, "the group is still there"
    table.drop_link(first.link)
    assert table.kept_bytes == 0


@pytest.mark.parametrize(
    "what",
    [
        {"sub_string": "x" * 100_000},
        {"sub_string": "\U0001f600" * 25_000},
        {"sub_string": "\U0001f600" + "x" * 25_000},
        {"tags_set": [f"{number:080}" for number in range(1000)]},
        {"code_set": list(range(1000, 2000))},
        {"code_set": [10**100_000, 10**100_001]},
        {"sub_version": 10**200_000},
        {"expression_type": "x" * 100_000},
        {"topic": "x" * 100_000},
    ],
)
def test_everything_of_a_subscription_that_a_client_chooses_is_counted(what: dict[str, Any]) -> None:
    usual = kept_bytes(SubscriptionData(topic="T", sub_string="*"))
    assert usual < 400
    assert kept_bytes(SubscriptionData(**{"topic": "T", "sub_string": "*", **what})) > usual + 80_000


def test_links_with_most_bytes_of_the_host_with_most_go_when_there_are_too_many(table: ClientTable) -> None:
    innocent, neighbour = Wire(host=2), Wire()
    table.register_consumer(long_text(50_000, "A"), channel(innocent))
    table.register_consumer(long_text(50_000, "A", group="neighbour"), channel(neighbour))
    strangers = [Wire() for _ in range(20)]
    closed: list[Any] = []
    for number, stranger in enumerate(strangers):
        for group in range(8):
            table.register_consumer(long_text(500_000, "A", group=f"{number}-{group}"), channel(stranger))
            # Whoever joins a group keeps its subscriptions.
            table.register_consumer(long_text(1, "A", group=f"{number}-{group}"), channel(strangers[0]))
            if found := table.crowding():
                closed += found
                for link in found:
                    table.drop_link(link)
    assert closed
    assert table.kept_bytes <= MOST_BYTES
    assert not {innocent, neighbour} & set(closed)


def test_a_producer_is_found_by_its_client_id_until_its_last_group_is_gone(table: ClientTable) -> None:
    producer = channel(client_id="p1")
    table.register_producer("PG1", producer)
    table.register_producer("PG2", producer)
    table.unregister_producer("PG1", producer.link)
    assert table.producer_channel("p1") is producer
    table.unregister_producer("PG2", producer.link)
    assert table.producer_channel("p1") is None


def test_a_client_that_came_back_on_a_new_link_outlives_its_old_one(table: ClientTable) -> None:
    old, new = channel(client_id="p1"), channel(client_id="p1")
    table.register_producer("PG", old)
    table.register_producer("PG", new)
    table.drop_link(old.link)
    assert table.producer_channel("p1") is new


def known_ids(table: ClientTable) -> int:
    return len(table._producer_of_client) + sum(len(ids) for ids in table._producer_ids.values())


def test_a_link_whose_heartbeats_change_its_id_is_known_by_the_last_one(table: ClientTable) -> None:
    link = Wire()
    for number in range(1000):
        table.register_producer("PG", channel(link, f"id{number}"))
    assert (known_ids(table), table.memberships) == (2, 1)
    assert table.producer_channel("id999") is not None
    assert table.producer_channel("id998") is None
    table.drop_link(cast("Any", link))
    assert (known_ids(table), table.memberships) == (0, 0)


def test_clients_of_one_link_in_groups_of_their_own_are_all_found(table: ClientTable) -> None:
    link = Wire()
    for _ in range(3):
        for group, client_id in (("PG1", "p1"), ("PG2", "p2"), ("PG3", "p1")):
            table.register_producer(group, channel(link, client_id))
    assert all(table.producer_channel(client_id) for client_id in ("p1", "p2"))
    table.register_producer("PG1", channel(link, "p2"))
    assert table.producer_channel("p1") is not None
    table.unregister_producer("PG3", cast("Any", link))
    assert table.producer_channel("p1") is None
    table.unregister_producer("PG2", cast("Any", link))
    assert table.producer_channel("p2") is not None
    table.unregister_producer("PG1", cast("Any", link))
    assert known_ids(table) == 0


def test_an_id_that_another_link_has_taken_over_stays_its_own(table: ClientTable) -> None:
    old, new = channel(client_id="p1"), channel(client_id="p1")
    table.register_producer("PG", old)
    table.register_producer("PG", new)
    table.register_producer("PG", channel(old.link, "p2"))
    assert table.producer_channel("p1") is new
    assert table.producer_channel("p2") is not None


def test_groups_are_found_by_topic_and_members_by_client_id(table: ClientTable) -> None:
    member = channel()
    table.register_consumer(subscribing("A", group="g1"), member)
    table.register_consumer(subscribing("B", group="g2"), member)
    assert to_the_end(table.groups_subscribing("A")) == ["g1"]
    assert table.consumer_channel("g2", "c1") is member
    assert table.consumer_channel("g2", "missing") is None
    assert table.consumer_channel("nogroup", "c1") is None


def test_nothing_is_kept_of_closed_links(table: ClientTable) -> None:
    link = Wire()
    table.register_consumer(subscribing("A"), channel(link))
    table.register_producer("PG", channel(link))
    table.drop_link(cast("Any", link))
    assert not any((table._consumer_groups, table._producer_groups, table._producer_of_client, table._producer_ids))


def test_the_codes_of_a_subscription_are_those_that_count_in_the_group() -> None:
    table, member = ClientTable(), channel()

    def beat(codes: list[int], version: int) -> Any:
        data = SubscriptionData(topic="A", sub_string="x || y", sub_version=version, code_set=codes)
        table.register_consumer(ConsumerData(group_name="CG", subscription_data_set=[data]), member)
        return table.consumers["CG"].tag_codes["A"]

    first = beat([1, 2], 1)
    assert first == {1, 2}
    assert beat([3], 1) is first
    assert beat([3], 2) == {3}
    table.register_consumer(ConsumerData(group_name="CG"), member)
    assert table.consumers["CG"].tag_codes == {}
