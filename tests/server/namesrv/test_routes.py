"""The route table after registrations, unregistrations and silence."""

from __future__ import annotations

import gc
import sys

import pytest

from triomq_protocol.requests import DataVersion, TopicConfig
from triomq_server.namesrv.routes import (
    BROKERS_PER_SLICE,
    SETTLED_MS,
    TOPICS_PER_SLICE,
    BrokerIdentity,
    RouteTable,
    TooManyBrokersError,
)
from triomq_server.wire import to_the_end


def broker(name="a", broker_id=0, address=None, cluster="C") -> BrokerIdentity:
    address = address or f"{name}-{broker_id}"
    return BrokerIdentity(cluster, name, broker_id, address, f"{address}-ha")


def register(table, who, *topics, version=1, now=0, channel="link", filter_servers=None, **settings):
    return to_the_end(register_in_slices(table, who, *topics, version=version, now=now, channel=channel,
                                         filter_servers=filter_servers, **settings))  # fmt: skip


def register_in_slices(table, who, *topics, version=1, now=0, channel="link", filter_servers=None, **settings):
    return table.register(
        who,
        {topic: TopicConfig(topic_name=topic, **settings) for topic in topics},
        DataVersion(counter=version, timestamp=5),
        channel=channel,
        now_ms=now,
        filter_servers=filter_servers,
    )


def sets(table) -> dict[str, dict[int, str]]:
    return {name: data.broker_addrs for name, data in to_the_end(table.cluster_info()).broker_addr_table.items()}


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def test_route_of_a_master_and_its_slaves(table) -> None:
    register(table, broker("a", 2))
    register(table, broker("a", 0), "T", read_queue_nums=4, write_queue_nums=3, perm=6, topic_sys_flag=1)
    register(table, broker("a", 1))
    route = table.route("T")
    assert [(b.broker_name, b.cluster, list(b.broker_addrs.items())) for b in route.broker_datas] == [
        ("a", "C", [(0, "a-0"), (1, "a-1"), (2, "a-2")])
    ]
    (queue,) = route.queue_datas
    assert (queue.broker_name, queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag) == (
        "a", 4, 3, 6, 1,
    )  # fmt: skip
    assert route.filter_server_table == {}
    assert table.route("U") is None
    assert table.route(None) is None


def test_a_route_over_two_sets_has_javas_order(table) -> None:
    register(table, broker("broker-a"), "T")
    register(table, broker("broker-b"), "T")
    register(table, broker("broker-c"), "U")
    route = table.route("T")
    assert [b.broker_name for b in route.broker_datas] == ["broker-b", "broker-a"]
    assert [q.broker_name for q in route.queue_datas] == ["broker-b", "broker-a"]


def test_an_answer_is_a_copy(table) -> None:
    register(table, broker(), "T")
    table.route("T").broker_datas[0].broker_addrs.clear()
    assert table.route("T").broker_datas[0].broker_addrs == {0: "a-0"}


def test_slave_gets_its_master_while_it_is_registered(table) -> None:
    assert register(table, broker("a", 1)) is None
    assert register(table, broker("a", 0)) is None
    master = register(table, broker("a", 1))
    assert (master.broker_addr, master.ha_server_addr) == ("a-0", "a-0-ha")
    table.unregister(broker("a", 0))
    assert register(table, broker("a", 1)) is None


def test_topics_only_from_masters(table) -> None:
    register(table, broker("a", 1), "T")
    assert to_the_end(table.all_topics()) == []


def test_same_version_changes_no_topic(table) -> None:
    register(table, broker(), "T")
    register(table, broker(), "U")
    assert to_the_end(table.all_topics()) == ["T"]
    register(table, broker(), "U", version=2)
    assert sorted(to_the_end(table.all_topics())) == ["T", "U"]


def test_topics_left_out_stay(table) -> None:
    register(table, broker(), "T", "U")
    register(table, broker(), "U", version=2, perm=4)
    assert table.route("T") is not None
    assert table.route("U").queue_datas[0].perm == 4


def test_the_same_version_from_another_address_counts_as_changed(table) -> None:
    register(table, broker(address="x"), "T")
    register(table, broker(address="y"), "U")
    assert sorted(to_the_end(table.all_topics())) == ["T", "U"]
    assert sets(table) == {"a": {0: "y"}}


def test_one_address_has_one_id(table) -> None:
    register(table, broker("a", 1, "x"))
    register(table, broker("a", 0, "x"), "T")
    assert sets(table) == {"a": {0: "x"}}


def test_master_that_was_a_slave_meanwhile_registers_its_topics_again(table) -> None:
    register(table, broker("a", 0, "x"), "T")
    register(table, broker("a", 1, "x"))
    table.delete_topic("T", 0)
    register(table, broker("a", 0, "x"), "T")
    assert to_the_end(table.all_topics()) == ["T"]


def test_set_keeps_its_first_cluster(table) -> None:
    register(table, broker("a", 0, cluster="C1"))
    register(table, broker("a", 1, cluster="C2"))
    info = to_the_end(table.cluster_info())
    assert info.broker_addr_table["a"].cluster == "C1"
    assert info.cluster_addr_table == {"C1": ["a"], "C2": ["a"]}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("compat_49", [False, True])
def test_a_set_leaves_the_cluster_that_all_its_brokers_have_left(compat_49: bool, restarted: bool) -> None:
    table = RouteTable(compat_49=compat_49)
    for cluster in ("C1", "C2"):
        for number in (0, 1):
            if restarted:
                table.channel_closed(f"link-{number}", "p")
            register(table, broker("a", number, cluster=cluster), "T", channel=f"link-{number}")
            if number == 0:
                both = to_the_end(table.cluster_info())
    assert both.cluster_addr_table == {"C1": ["a"], "C2": ["a"]}, "the slave is still in the first one"
    assert both.broker_addr_table["a"].cluster == "C1"
    info = to_the_end(table.cluster_info())
    assert info.cluster_addr_table == ({"C1": ["a"], "C2": ["a"]} if compat_49 else {"C2": ["a"]})
    assert info.broker_addr_table["a"].cluster == ("C1" if compat_49 else "C2")
    assert to_the_end(table.topics_of_cluster("C1")) == (["T"] if compat_49 else [])


def test_slave_keeps_the_topics_when_its_master_leaves(table) -> None:
    register(table, broker("a", 0), "T")
    register(table, broker("a", 1))
    table.unregister(broker("a", 0))
    assert table.route("T").broker_datas[0].broker_addrs == {1: "a-1"}
    table.unregister(broker("a", 1))
    assert table.route("T") is None
    assert to_the_end(table.cluster_info()).cluster_addr_table == {}
    assert to_the_end(table.all_topics()) == []


@pytest.mark.parametrize(("compat_49", "left"), [(True, {}), (False, {"a": {0: "heir"}})])
def test_a_late_unregistration_does_not_remove_the_new_master(compat_49: bool, left: dict[str, dict[int, str]]) -> None:
    """The slave has become master while the old one was about to stop."""
    table = RouteTable(compat_49=compat_49)
    register(table, broker("a", 0, "old"), "T")
    register(table, broker("a", 0, "heir"), "T")
    table.unregister(broker("a", 0, "old"))
    assert sets(table) == left
    assert (table.route("T") is not None) == bool(left)
    table.unregister(broker("missing"))


def test_one_set_leaving_keeps_the_other_on_a_topic(table) -> None:
    register(table, broker("a"), "T", "A")
    register(table, broker("b"), "T")
    table.unregister(broker("a"))
    assert [q.broker_name for q in table.route("T").queue_datas] == ["b"]
    assert to_the_end(table.all_topics()) == ["T"]
    assert to_the_end(table.cluster_info()).cluster_addr_table == {"C": ["b"]}


def test_expiry_is_after_more_than_120_s(table) -> None:
    register(table, broker("a"), "T", now=1000, channel="l1")
    register(table, broker("b"), "T", now=2000, channel="l2")
    assert to_the_end(table.expire(121_000)) == []
    assert to_the_end(table.expire(121_001)) == [("a-0", "l1")]
    assert sets(table) == {"b": {0: "b-0"}}
    assert to_the_end(table.expire(121_001)) == []


def test_registering_again_and_equal_version_checks_keep_a_broker_registered(table) -> None:
    register(table, broker("a"), now=0)
    register(table, broker("b"), now=0)
    register(table, broker("c"), now=0)
    register(table, broker("a"), now=100_000)
    table.check_version("b-0", DataVersion(counter=1, timestamp=5), 100_000)
    table.check_version("c-0", DataVersion(counter=2, timestamp=5), 100_000)
    assert [address for address, _ in to_the_end(table.expire(130_000))] == ["c-0"]


def test_version_check(table) -> None:
    version = DataVersion(counter=1, timestamp=5)
    assert table.check_version("a-0", version, 0) == (True, None)
    register(table, broker("a"))
    assert table.check_version("a-0", version, 0) == (False, version)
    for other in (DataVersion(counter=2, timestamp=5), DataVersion(counter=1, timestamp=6)):
        assert table.check_version("a-0", other, 0) == (True, version)


def test_closed_channel_takes_its_broker_along_at_once(table) -> None:
    register(table, broker("a", 0), "T", channel="l1")
    register(table, broker("a", 1), channel="l2")
    assert table.channel_closed("l1", "10.0.0.1:5") == ["a-0"]
    assert table.route("T").broker_datas[0].broker_addrs == {1: "a-1"}
    assert table.channel_closed("l1", "10.0.0.1:5") == []


def test_old_channel_does_not_matter_after_a_new_registration(table) -> None:
    register(table, broker(), "T", channel="old")
    register(table, broker(), "T", channel="new")
    assert table.channel_closed("old", "10.0.0.1:5") == []
    assert table.route("T") is not None


def test_channel_of_no_broker_counts_by_its_address(table) -> None:
    register(table, broker(address="10.0.0.1:5"), "T", channel="l1")
    table.channel_closed("another", "10.0.0.1:5")
    assert table.route("T") is None


@pytest.mark.parametrize(("compat_49", "left"), [(False, []), (True, ["b"])])
def test_channel_with_two_brokers(compat_49, left) -> None:
    table = RouteTable(compat_49=compat_49)
    register(table, broker("a"), channel="l1")
    register(table, broker("b"), channel="l1")
    table.channel_closed("l1", "10.0.0.1:5")
    assert list(sets(table)) == left


def test_set_in_two_clusters_leaves_both_when_its_connection_ends(table) -> None:
    register(table, broker("a", 0, "x", cluster="C1"), channel="l1")
    register(table, broker("a", 0, "x", cluster="C2"), channel="l1")
    table.channel_closed("l1", "p")
    assert to_the_end(table.cluster_info()).cluster_addr_table == {}


def test_filter_servers(table) -> None:
    register(table, broker(), "T", filter_servers=["f:1"])
    assert table.route("T").filter_server_table == {"a-0": ["f:1"]}
    register(table, broker(), filter_servers=None)
    assert table.route("T").filter_server_table == {"a-0": ["f:1"]}
    register(table, broker(), filter_servers=[])
    assert table.route("T").filter_server_table == {}


def test_filter_servers_are_few_and_short(table, monkeypatch) -> None:
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_FILTER_SERVERS", 20)
    sixteen = [f"f:{number}" for number in range(16)]
    register(table, broker("a"), "T", filter_servers=sixteen)
    with pytest.raises(TooManyBrokersError, match="17 filter servers; at most 16"):
        register(table, broker("b"), filter_servers=[*sixteen, "one more"])
    with pytest.raises(TooManyBrokersError, match="16 filter servers of other brokers are kept; 20 are possible"):
        register(table, broker("b"), filter_servers=sixteen[:5])
    with pytest.raises(ValueError, match="at most 255"):
        register(table, broker("b"), filter_servers=["f" * 256])
    assert sets(table) == {"a": {0: "a-0"}}
    register(table, broker("a"), filter_servers=sixteen)
    register(table, broker("b"), filter_servers=sixteen[:4])
    table.channel_closed("link", "peer")
    register(table, broker("c"), "T", filter_servers=sixteen)
    assert table.route("T").filter_server_table == {"c-0": sixteen}


def test_delete_topic_everywhere_or_in_one_cluster(table) -> None:
    register(table, broker("a", cluster="C1"), "T", "U")
    register(table, broker("b", cluster="C2"), "T")
    table.delete_topic("T", 0, "C1")
    assert [q.broker_name for q in table.route("T").queue_datas] == ["b"]
    table.delete_topic("T", 0, "nowhere")
    assert table.route("T") is not None
    table.delete_topic("T", 0, "C2")
    assert to_the_end(table.all_topics()) == ["U"]
    table.delete_topic("U", 0, "")
    table.delete_topic("unknown", 0)
    table.delete_topic("unknown", 0, "C1")
    assert to_the_end(table.all_topics()) == []


@pytest.mark.parametrize(
    ("version", "age_ms", "compat_49", "returns"),
    [
        (1, SETTLED_MS - 1, False, False),  # it may be older than the deletion, and nothing would take it back
        (1, SETTLED_MS, False, True),
        (1, SETTLED_MS, True, False),
        (2, 0, False, True),
        (2, 0, True, True),
    ],
    ids=["at once", "later", "later, as 4.9", "changed", "changed, as 4.9"],
)
@pytest.mark.parametrize("cluster", [None, "C"])
def test_a_deleted_topic_that_a_broker_still_has_returns(cluster, version, age_ms, compat_49, returns) -> None:
    """A producer made it again on the broker, before the name servers were asked to delete it."""
    table = RouteTable(compat_49=compat_49)
    for shown_at in (0, SETTLED_MS):
        register(table, broker("a"), "T", "U", now=shown_at)
        register(table, broker("a", 1), now=shown_at)
        register(table, broker("b"), "U", channel="b", now=shown_at)
    deleted_at = SETTLED_MS + 1000
    table.delete_topic("T", deleted_at, cluster)
    now = deleted_at + age_ms
    asked = DataVersion(counter=version, timestamp=5)
    assert table.check_version("a-0", asked, now)[0] is returns
    same = DataVersion(counter=1, timestamp=5)
    assert table.check_version("a-1", same, now) == (False, same), "slaves register no topics"
    assert table.check_version("b-0", same, now) == (False, same), "this one did not have the topic"
    register(table, broker("a"), "T", "U", version=version, now=now)
    assert (table.route("T") is not None) is returns


def test_topics_return_only_with_the_whole_table(table) -> None:
    register(table, broker("a"), "T", "U")
    table.delete_topic("T", 0)
    now = SETTLED_MS
    register(table, broker("a"), "V", version=2, now=now)  # a Java broker sends a changed topic alone
    assert table.route("T") is None
    to_the_end(table.wipe_write_permission("a"))
    register(table, broker("a"), "T", "U", "V", version=2, now=now)
    assert {topic: table.route(topic).queue_datas[0].perm for topic in "TUV"} == {"T": 6, "U": 4, "V": 4}
    version = DataVersion(counter=2, timestamp=5)
    assert table.check_version("a-0", version, now) == (False, version), "once is enough"
    table.delete_topic("T", now)
    table.unregister(broker("a"))
    register(table, broker("a"), "U", version=2, now=now)
    register(table, broker("a"), "T", "U", version=2, now=now + SETTLED_MS - 1)
    assert table.route("T") is None, "the set was dropped: its first registration may be older than the deletion"


@pytest.mark.parametrize("compat_49", [False, True])
def test_a_first_registration_may_be_of_a_single_topic(compat_49) -> None:
    """As that of a Java broker on which a topic is created, just after the name server has started again."""
    table = RouteTable(compat_49=compat_49)
    register(table, broker("a"), "new", version=2)
    register(table, broker("a", 1), version=2)
    version = DataVersion(counter=2, timestamp=5)
    assert table.check_version("a-0", version, SETTLED_MS - 1) == (False, version), "it may be older than a deletion"
    assert table.check_version("a-1", version, SETTLED_MS) == (False, version)
    assert table.check_version("a-0", version, SETTLED_MS) == (not compat_49, version)
    register(table, broker("a"), "old", "new", version=2, now=SETTLED_MS)
    assert (table.route("old") is None) is compat_49
    assert table.check_version("a-0", version, 2 * SETTLED_MS) == (False, version), "once is enough"


@pytest.mark.parametrize("kind", ["first", "changed", "shown again"])
@pytest.mark.parametrize("cluster", [None, "C", "other"])
def test_a_topic_that_is_deleted_while_a_table_is_recorded_does_not_return(table, kind, cluster) -> None:
    """The table may be older than the deletion, and nothing would remove the topic again."""
    topics = [f"T{number}" for number in range(TOPICS_PER_SLICE + 1)]
    now = 0
    if kind != "first":
        register(table, broker("a"), *topics, "gone")
    if kind == "shown again":
        table.delete_topic("gone", now)
        now = SETTLED_MS
    recording = register_in_slices(table, broker("a"), *topics, version=2 if kind == "changed" else 1, now=now)
    next(recording)
    table.delete_topic(topics[0], now, cluster)
    table.delete_topic(topics[-1], now, cluster)
    to_the_end(recording)
    assert [table.route(topic) is not None for topic in (topics[0], topics[1], topics[-1])] == [
        cluster == "other", True, cluster == "other"
    ]  # fmt: skip
    register(table, broker("a"), topics[-1], version=2 if kind == "changed" else 1, now=now + SETTLED_MS)
    assert table.route(topics[-1]) is not None, "the broker still has it"


def test_write_permission_of_a_set(table) -> None:
    register(table, broker("a"), "T", "U", perm=7)
    register(table, broker("b"), "T", perm=7)

    def permissions(topic):
        return {q.broker_name: q.perm for q in table.route(topic).queue_datas}

    assert to_the_end(table.wipe_write_permission("a")) == 2
    assert permissions("T") == {"a": 5, "b": 7}
    register(table, broker("a"), "T", "U", perm=7)
    assert permissions("T") == {"a": 5, "b": 7}
    assert to_the_end(table.add_write_permission("a")) == 2
    assert permissions("U") == {"a": 6}
    to_the_end(table.wipe_write_permission("a"))
    register(table, broker("a"), "T", "U", perm=7, version=2)
    assert permissions("T") == {"a": 7, "b": 7}
    assert to_the_end(table.wipe_write_permission("missing")) == 0


def test_topic_lists(table) -> None:
    register(table, broker("a", cluster="C1"), "T", "S", topic_sys_flag=0)
    register(table, broker("b", cluster="C2"), "T", "U", topic_sys_flag=1)
    register(table, broker("c", cluster="C2"), "T", "V", topic_sys_flag=2)
    register(table, broker("d", cluster="C2"), "W", topic_sys_flag=3)
    assert sorted(to_the_end(table.all_topics())) == ["S", "T", "U", "V", "W"]
    assert sorted(to_the_end(table.topics_of_cluster("C1"))) == ["S", "T"]
    assert to_the_end(table.topics_of_cluster("C3")) == []
    assert sorted(to_the_end(table.unit_topics())) == ["T", "U", "W"]
    assert sorted(to_the_end(table.unit_sub_topics())) == ["T", "V", "W"]
    assert sorted(to_the_end(table.unit_sub_ununit_topics())) == ["T", "V"]
    names, address = to_the_end(table.system_topics())
    assert sorted(names) == ["C1", "C2", "a", "b", "c", "d"]
    assert address == "a-0"
    assert to_the_end(RouteTable().system_topics()) == ([], None)


MANY = [f"topic{n}" for n in range(10 * TOPICS_PER_SLICE)]


def yields(slices) -> int:
    count = 0
    for _ in slices:
        count += 1
    return count


def test_long_tables_are_recorded_and_listed_in_slices(table) -> None:
    assert yields(register_in_slices(table, broker("a"), *MANY, topic_sys_flag=1)) == 10
    assert yields(table.all_topics()) >= 5
    assert yields(table.unit_topics()) >= 10
    assert yields(table.topics_of_cluster("C")) >= 10
    assert len(to_the_end(table.topics_of_cluster("C"))) == len(MANY)
    assert to_the_end(table.wipe_write_permission("a")) == len(MANY)


def test_a_registration_that_is_cut_off_counts_for_nothing(table) -> None:
    slices = register_in_slices(table, broker("a"), *MANY, channel="one")
    next(slices)
    assert table.check_version("a-0", DataVersion(counter=1, timestamp=5), 0)[0], "the topics have not all come"
    assert table.channel_closed("one", "peer") == ["a-0"]
    assert yields(slices) == 0
    assert to_the_end(table.all_topics()) == []
    assert sets(table) == {}


def test_a_later_master_ends_the_registration_of_the_one_before(table) -> None:
    slices = register_in_slices(table, broker("a", address="old"), *MANY, channel="one", read_queue_nums=1)
    next(slices)
    register(table, broker("a", address="new"), *MANY, channel="two", read_queue_nums=2)
    assert yields(slices) == 0
    assert {table.route(topic).queue_datas[0].read_queue_nums for topic in MANY} == {2}


def test_topics_go_with_their_set_and_only_with_it(table) -> None:
    register(table, broker("a"), "T", "U")
    register(table, broker("b"), "T", "V", channel="b")
    table.delete_topic("U", 0)
    register(table, broker("c"), "U", channel="c")
    assert table.channel_closed("link", "peer") == ["a-0"]
    assert sorted(to_the_end(table.all_topics())) == ["T", "U", "V"]
    table.channel_closed("c", "peer")
    assert sorted(to_the_end(table.all_topics())) == ["T", "V"]


class CountedDict(dict):
    """Counts what is looked at one after the other."""

    seen = 0

    def __iter__(self):
        for key in super().__iter__():
            CountedDict.seen += 1
            yield key

    def items(self):
        for item in super().items():
            CountedDict.seen += 1
            yield item


def test_a_link_of_many_brokers_closes_in_linear_time(table) -> None:
    table._brokers, table._clusters, table._topics = CountedDict(), CountedDict(), CountedDict()
    for number in range(300):
        register(table, broker(f"b{number}", cluster=f"C{number}"), f"T{number}")
    CountedDict.seen = 0
    assert len(table.channel_closed("link", "peer")) == 300
    assert CountedDict.seen < 1000
    assert len(sets(table)) == 300 - BROKERS_PER_SLICE, "the others go in further slices"
    to_the_end(table.remove_in_slices())
    assert sets(table) == {}
    assert to_the_end(table.cluster_info()).cluster_addr_table == {}


def test_brokers_have_a_limit(table, monkeypatch) -> None:
    monkeypatch.setattr("triomq_server.namesrv.routes.MOST_BROKERS", 2)
    register(table, broker("a"))
    register(table, broker("b"))
    with pytest.raises(TooManyBrokersError, match="one too many"):
        register(table, broker("c"))
    register(table, broker("a"), version=2)
    assert sorted(sets(table)) == ["a", "b"]


def test_brokers_of_a_set_have_a_limit(table) -> None:
    for number in range(64):
        register(table, broker("a", number))
    with pytest.raises(TooManyBrokersError, match="64 brokers of a are registered; a-64 is one too many"):
        register(table, broker("a", 64))
    register(table, broker("a", 1))
    register(table, broker("a", 70, address="a-1"))
    assert list(sets(table)["a"]) == [0, *range(2, 64), 70]
    register(table, broker("a", 5, address="another"))
    assert sets(table)["a"][5] == "another"
    table.unregister(broker("a", 3))
    register(table, broker("a", 64))
    assert len(sets(table)["a"]) == 64


def test_brokers_of_a_connection_go_in_slices(table) -> None:
    for number in range(1000):
        register(table, broker(f"s{number}"), "T")
    assert len(table.channel_closed("link", "peer")) == 1000
    assert len(sets(table)) == 1000 - BROKERS_PER_SLICE
    # One that comes back meanwhile, over another connection, stays.
    register(table, broker("s999"), "T", channel="new")
    assert yields(table.remove_in_slices()) == 2
    assert sets(table) == {"s999": {0: "s999-0"}}
    assert [queues.broker_name for queues in table.route("T").queue_datas] == ["s999"]


def test_silent_brokers_are_dropped_in_slices(table) -> None:
    for number in range(600):
        register(table, broker(f"s{number}"), channel=f"l{number}")
    slices = table.expire(130_000)
    next(slices)
    register(table, broker("s599"), channel="l599", now=130_000)
    assert len(to_the_end(slices)) == 599
    assert list(sets(table)) == ["s599"]


def test_topics_of_many_small_sets_are_listed_and_removed_in_slices(table) -> None:
    for number in range(500):
        register(table, broker(f"s{number}"), *[f"t{number}-{n}" for n in range(45)], "T", channel=f"l{number}")
    topics = 500 * 46
    assert yields(table.topics_of_cluster("C")) >= topics // TOPICS_PER_SLICE
    assert len(to_the_end(table.topics_of_cluster("C"))) == 500 * 45 + 1
    for number in range(500):
        table.channel_closed(f"l{number}", "peer")
    assert yields(table.remove_in_slices()) >= topics // TOPICS_PER_SLICE
    assert not table.has_gone


def test_lists_count_the_sets_of_each_topic(table) -> None:
    topics = [f"t{number}" for number in range(100)]
    for number in range(300):
        register(table, broker(f"s{number}"), *topics)
    assert yields(table.unit_topics()) >= 100 * 300 // TOPICS_PER_SLICE


def test_a_set_that_unregisters_naming_another_cluster_leaves_nothing(table) -> None:
    for number in range(5):
        register(table, broker(f"s{number}", cluster="C"))
        table.unregister(broker(f"s{number}", cluster="D"))
    assert to_the_end(table.cluster_info()).cluster_addr_table == {}
    assert not table._clusters_of
    assert not table._sets_of


@pytest.mark.parametrize("compat_49", [True, False])
def test_an_address_that_registers_under_many_names_leaves_nothing(compat_49: bool) -> None:
    table = RouteTable(compat_49=compat_49)
    for number in range(5):
        register(table, broker(f"s{number}", address="x"), f"t{number}")
        assert sets(table) == {f"s{number}": {0: "x"}}
    table.channel_closed("link", "peer")
    to_the_end(table.remove_in_slices())
    assert table.sizes() == (0, 0, 0)
    assert not table._sets_of


def test_of_a_set_that_an_address_leaves_the_other_brokers_stay(table) -> None:
    register(table, broker("a", 0, "x"), "T")
    register(table, broker("a", 1, "y"))
    register(table, broker("b", 0, "x"))
    assert sets(table) == {"a": {1: "y"}, "b": {0: "x"}}
    assert table.route("T").broker_datas[0].broker_addrs == {1: "y"}


@pytest.mark.parametrize(("name", "broker_id"), [("another", 0), ("a", 1)])
def test_a_broker_that_unregisters_under_another_name_or_id_still_goes_with_its_connection(
    table, name: str, broker_id: int
) -> None:
    register(table, broker("a", 0, "x"), "T")
    register(table, broker("a", 2, "y"), channel="other")
    table.unregister(broker(name, broker_id, "x"))
    assert table.check_version("x", DataVersion(counter=1, timestamp=5), 0)[1] is not None
    table.channel_closed("link", "peer")
    assert sets(table) == {"a": {2: "y"}}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector looks at every dict")
def test_the_garbage_collector_does_not_look_at_topics(table) -> None:
    register(table, broker("a"), "T")
    assert not gc.is_tracked(table._topics["T"])
    assert not gc.is_tracked(table._own_topics["a"])
