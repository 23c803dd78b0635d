"""Filters by properties (SQL92): from heartbeats and in pulls, while pulls wait, in consumerFilter.json
(docs/protocol/broker-api.md §5, §8)."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode
from triomq_protocol.filters.evaluation import Sql92Filter
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.heartbeat import CheckClientConfigBody, SubscriptionData
from triomq_protocol.wire.command import Command
from triomq_server.broker.tables import consumer_filters
from triomq_server.broker.tables.consumer_filters import (
    ConsumerFilters,
    LatestByText,
    compiled,
)
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged

ON = {"enablePropertyFilter": "true"}
FILE = "/store/config/consumerFilter.json"
NOT_SUPPORTED = "The broker does not support consumer to filter message by SQL92"
NO_FILTER = "The broker's consumer filter data is not exist!Your expression may be wrong!"
SQL: dict[str, Any] = {"expression_type": "SQL92", "sub_string": "a > 3", "sub_version": 5}
REGISTERED: dict[str, Any] = {"sys_flag": 0, "sub_version": 5, "expression_type": "SQL92", "subscription": None}


def inline(expression: str | None, kind: str = "SQL92") -> dict[str, Any]:
    return {"sys_flag": 4, "expression_type": kind, "subscription": expression}


def with_a(value: object, **fields: Any) -> dict[str, Any]:
    return {"body": b"%s" % str(value).encode(), "properties": f"TAGS\x01TagA\x02a\x01{value}", **fields}


async def put(peer: Any, *values: object, topic: str = "T1") -> None:
    for value in values:
        assert (await peer.put(topic, **with_a(value))).code == 0


async def pulled(peer: Any, topic: str = "T1", offset: int = 0, **fields: Any) -> tuple[int, list[bytes], int]:
    answer = await peer.pull(topic, offset, **fields)
    return answer.code, [record.body for record in iter_records(answer.body)], int(answer.fields["nextBeginOffset"])


# -- pulls that bring their expression


async def test_only_true_is_delivered(open_broker: Any) -> None:
    async with open_broker(**ON) as broker:
        peer = await broker.peer()
        await put(peer, 1, 5, "text", 4, 3)
        await peer.put(properties="")
        assert await pulled(peer, **inline("a > 3")) == (0, [b"5", b"4"], 6)
        assert await pulled(peer, **inline("a IS NULL")) == (0, [b"hello"], 6)
        assert await pulled(peer, **inline("a = 'text' AND TAGS = 'TagA'")) == (0, [b"text"], 6)
        assert await pulled(peer, offset=2, **inline("a > 3")) == (0, [b"4"], 6)


async def test_a_filter_that_matches_nothing_advances(open_broker: Any) -> None:
    async with open_broker(**ON) as broker:
        peer = await broker.peer()
        await put(peer, *[1] * 1000)
        assert await pulled(peer, **inline("a > 3")) == (20, [], 800)
        assert await pulled(peer, offset=800, **inline("a > 3")) == (20, [], 1000)
        answer = await peer.pull(offset=1000, **inline("a > 3"))
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("a >", "SQL92"),
        (None, "SQL92"),
        ("a > 3", "sql92"),
        ("a > 3", "CLASS"),
        ("(" * 500, "SQL92"),
        ("x" * 20_000, "SQL92"),
    ],
)
async def test_what_does_not_compile_lets_everything_pass(open_broker: Any, expression: str | None, kind: str) -> None:
    async with open_broker(**ON) as broker:
        peer = await broker.peer()
        await put(peer, 1, 5)
        assert await pulled(peer, **inline(expression, kind)) == (0, [b"1", b"5"], 2)


async def test_the_class_filter_flag_has_no_effect(open_broker: Any) -> None:
    """Such a pull goes to a filter server; one that arrives here is answered as if the flag were not set."""
    async with open_broker() as broker:
        peer = await broker.peer()
        await put(peer, 1)
        await peer.ask(peer.heartbeat(class_filter_mode=True, sub_string="org.example.Filter"))
        assert await pulled(peer, sys_flag=8, sub_version=5) == (0, [b"1"], 1)
        assert await pulled(peer, sys_flag=12, subscription="TagB") == (20, [], 1)


# -- subscriptions that heartbeats bring


async def test_registered_filters(open_broker: Any) -> None:
    async with open_broker(**ON) as broker:
        peer = await broker.peer()
        await put(peer, 1, 5)
        await peer.ask(peer.heartbeat(**SQL))
        assert await pulled(peer, **REGISTERED) == (0, [b"5"], 2)
        newer = {**SQL, "sub_string": "a < 3", "sub_version": 6}
        await peer.ask(peer.heartbeat(**newer))
        assert await pulled(peer, **REGISTERED) == (0, [b"1"], 2)
        await peer.ask(peer.heartbeat(**SQL))
        assert await pulled(peer, **REGISTERED) == (0, [b"1"], 2), "an older subscription does not come back"
        await peer.ask(peer.heartbeat(sub_string="*", sub_version=7))
        assert await pulled(peer, **REGISTERED) == (0, [b"1", b"5"], 2)


@pytest.mark.parametrize(
    ("settings", "subscription", "pull", "code", "remark"),
    [
        ({}, SQL, REGISTERED, 1, NOT_SUPPORTED),
        ({}, {**SQL, "sub_string": "a >"}, REGISTERED, 27, NO_FILTER),
        (ON, {**SQL, "sub_string": "a >"}, REGISTERED, 27, NO_FILTER),
        (ON, {**SQL, "expression_type": "OTHER"}, REGISTERED, 27, NO_FILTER),
        (ON, SQL, {**REGISTERED, "sub_version": 6}, 25, "the consumer's subscription not latest"),
        ({}, None, inline("a > 3"), 1, NOT_SUPPORTED),
        ({}, None, inline("a >"), 1, NOT_SUPPORTED),
        ({}, None, inline("x", "CLASS"), 1, NOT_SUPPORTED.replace("SQL92", "CLASS")),
    ],
)
async def test_refusals(
    open_broker: Any, settings: dict[str, str], subscription: Any, pull: dict[str, Any], code: int, remark: str
) -> None:
    async with open_broker(**settings) as broker:
        peer = await broker.peer()
        await put(peer, 5)
        if subscription is not None:
            assert (await peer.ask(peer.heartbeat(**subscription))).code == 0
        answer = await peer.pull(**pull)
        assert (answer.code, answer.remark) == (code, remark)


async def test_a_filter_behind_its_subscription_is_refused(open_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats update both at once, so only a filter that was not updated can be behind."""
    async with open_broker(**ON) as broker:
        peer = await broker.peer()
        await put(peer, 5)
        await peer.ask(peer.heartbeat(**SQL))
        assert (await peer.pull(**REGISTERED)).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(ConsumerFilters, "update", lambda *_args: None)
            await peer.ask(peer.heartbeat(**SQL | {"sub_version": 6}))
        answer = await peer.pull(**REGISTERED | {"sub_version": 6})
        assert (answer.code, answer.remark) == (28, "the consumer's consumer filter data not latest")
        # Who knows of the old subscription only is served by the old filter.
        assert (await peer.pull(**REGISTERED)).code == 0
        await peer.ask(peer.heartbeat(**SQL | {"sub_version": 7}))
        assert (await peer.pull(**REGISTERED | {"sub_version": 7})).code == 0


async def test_request_25_switches_filters_on(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await put(peer, 1, 5)
        assert (await peer.pull(**inline("a > 3"))).code == 1
        await peer.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true"))
        assert await pulled(peer, **inline("a > 3")) == (0, [b"5"], 2)


@pytest.mark.parametrize(
    ("settings", "kind", "expression", "code", "remark"),
    [
        ({}, "TAG", "TagA", 0, None),
        ({}, "", None, 0, None),
        ({}, "SQL92", "a > 3", 1, NOT_SUPPORTED),
        (ON, "SQL92", "a > 3", 0, None),
        (ON, "SQL92", "a > ", 23, "'the end' at character 5"),
        (ON, "SQL92", None, 23, "'the end' at character 1"),
        (ON, "OTHER", "x", 23, "there is no filter of type OTHER"),
    ],
)
async def test_what_a_starting_client_asks(
    open_broker: Any, settings: dict[str, str], kind: str, expression: str | None, code: int, remark: str | None
) -> None:
    data = SubscriptionData(topic="T1", expression_type=kind, sub_string=expression)
    body = CheckClientConfigBody(client_id="c", group="g", subscription_data=data).encode()
    async with open_broker(**settings) as broker:
        answer = await (await broker.peer()).ask(Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body))
    assert answer.code == code
    assert (answer.remark or "").startswith(remark or "")
    assert (answer.remark is None) is (remark is None)


# -- pulls that wait


@pytest.mark.parametrize("how", [inline("a > 3"), REGISTERED])
async def test_only_a_wanted_message_wakes_a_pull(open_broker: Any, how: dict[str, Any]) -> None:
    waiting = {**how, "sys_flag": how["sys_flag"] | 2, "suspend_timeout_millis": 20_000}
    async with open_broker(**ON) as broker:
        peer, sender = await broker.peer(), await broker.peer()
        await put(sender, 1)
        await peer.ask(peer.heartbeat(**SQL))
        start = trio.current_time()
        asked = await peer.send(peer.pull_request(offset=1, **waiting))
        for value in (1, "text", 2, 9):
            await trio.sleep(1)
            await put(sender, value)
        answer = await peer.receive()
        assert answer.opaque == asked
        assert trio.current_time() - start == pytest.approx(4, abs=0.1)
        assert [record.body for record in iter_records(answer.body)] == [b"9"]
        assert answer.fields["nextBeginOffset"] == "5"


async def test_a_waiting_pull_that_nothing_wakes_still_advances(open_broker: Any) -> None:
    async with open_broker(**ON) as broker:
        peer, sender = await broker.peer(), await broker.peer()
        await put(sender, 1)
        await peer.send(
            peer.pull_request(offset=1, **{**inline("a > 3"), "sys_flag": 6, "suspend_timeout_millis": 5000})
        )
        await put(sender, 1, 2, 3)
        answer = await peer.receive()
        assert trio.current_time() >= 5
        assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "4")


async def test_a_batch_wakes_a_pull_when_one_of_it_is_wanted(open_broker: Any) -> None:
    def element(value: int) -> bytes:
        properties = f"a\x01{value}".encode()
        size = 22 + 1 + len(properties)
        parts = (size.to_bytes(4, "big"), bytes(12), (1).to_bytes(4, "big"), b"x", len(properties).to_bytes(2, "big"))
        return b"".join(parts) + properties

    waiting = {**inline("a > 3"), "sys_flag": 6, "suspend_timeout_millis": 20_000}
    async with open_broker(**ON) as broker:
        peer, sender = await broker.peer(), await broker.peer()
        await put(sender, 1)
        await peer.send(peer.pull_request(offset=1, **waiting))
        for values in ((1, 2), (3, 4, 1)):
            await sender.put(body=b"".join(map(element, values)), code=320, batch=True, properties="")
        answer = await peer.receive()
        assert trio.current_time() < 1
        assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "6")


# -- messages that come again


@pytest.mark.parametrize(("support", "found"), [("true", [b"5"]), ("false", [b"5", b"1"])])
async def test_retries_are_filtered_by_the_first_topics_filter(
    open_broker: Any, support: str, found: list[bytes]
) -> None:
    async with open_broker(filterSupportRetry=support, **ON) as broker:
        peer = await broker.peer()
        await put(peer, 5, 1)
        await peer.ask(peer.heartbeat(**SQL))
        records = list(iter_records((await peer.pull()).body))
        for record in records:
            fields = {"offset": str(record.physical_offset), "group": "CG", "delayLevel": "1"}
            assert (await peer.ask(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields))).code == 0
        await trio.sleep(2)
        assert (await pulled(peer, "%RETRY%CG"))[1] == found


# -- the file


async def test_filters_are_written_down_and_read_again(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk, **ON) as broker:
        peer = await broker.peer()
        await put(peer, 1, 5)
        await peer.ask(peer.heartbeat(**SQL))
        await trio.sleep(11)
        written = json.loads(disk.read(FILE))
    entry = written["filterDataByTopic"]["T1"]["groupFilterData"]["CG"]
    positions = entry["bloomFilterData"].pop("bitPos")
    assert len(set(positions)) == 3
    assert all(0 <= position < 112 for position in positions)
    assert entry.pop("bornTime") > 0
    assert entry == {
        "bloomFilterData": {"bitNum": 112}, "clientVersion": 5, "consumerGroup": "CG", "dead": False, "deadTime": 0,
        "expression": "a > 3", "expressionType": "SQL92", "topic": "T1",
    }  # fmt: skip
    async with open_broker(disk=disk, **ON) as broker:
        peer = await broker.peer()
        await trio.sleep(11)
        entry = json.loads(disk.read(FILE))["filterDataByTopic"]["T1"]["groupFilterData"]["CG"]
        assert entry["dead"] is True, "it has had no subscriber since the start"
        assert entry["bloomFilterData"]["bitPos"] == positions
        await peer.ask(peer.heartbeat(**SQL))
        assert await pulled(peer, **REGISTERED) == (0, [b"5"], 2)
        await trio.sleep(11)
        assert b'"dead":false' in disk.read(FILE)


def test_filters_without_a_subscriber_expire() -> None:
    now = [1000]
    filters = ConsumerFilters(None, lambda: now[0])
    filters.update("CG", [SubscriptionData(topic="T1", **SQL)])
    filters.expire(lambda *_: None, keep_ms=500)
    now[0] += 500
    filters.expire(lambda *_: None, keep_ms=500)
    assert filters.find("T1", "CG") is not None
    now[0] += 1
    filters.expire(lambda *_: None, keep_ms=500)
    assert filters.find("T1", "CG") is None


def test_a_file_of_java() -> None:
    text = """{
	"filterDataByTopic":{
		"T1":{
			"groupFilterData":{
				"CGSQL":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[90,84,35]
					},
					"bornTime":1795237270244,
					"clientVersion":1795237266576,
					"consumerGroup":"CGSQL",
					"dead":false,
					"deadTime":0,
					"expression":"a > 0 AND TAGS = 'TagA'",
					"expressionType":"SQL92",
					"topic":"T1"
				}
			},
			"topic":"T1"
		}
	}
}"""
    disk = MemoryDisk()
    disk.write("/f", text.encode())
    filters = ConsumerFilters(ConfigFile("/f", disk), lambda: 0)
    filters.load()
    found = filters.find("T1", "CGSQL")
    assert found is not None
    assert compiled("SQL92", found.expression).matches({"a": "1", "TAGS": "TagA"})
    filters.changed = True
    filters.persist()
    assert json.loads(disk.read("/f")) == json.loads(text)


@pytest.mark.parametrize(
    "text", [b'{"filterDataByTopic":{"T1":1}}', b'{"filterDataByTopic":{"T1":{"groupFilterData":{"G":{}}}}}']
)
def test_a_file_of_another_shape_stops_the_start_with_its_name(text: bytes) -> None:
    disk = MemoryDisk()
    disk.write("/f", text)
    with pytest.raises(ConfigFileDamaged, match="/f does not hold what it should"):
        ConsumerFilters(ConfigFile("/f", disk), lambda: 0).load()


def test_a_group_whose_name_holds_a_lone_surrogate_gets_its_filter() -> None:
    disk = MemoryDisk()
    filters = ConsumerFilters(ConfigFile(FILE, disk), lambda: 0)
    subscription = SubscriptionData(topic="T", **SQL)
    filters.update("G\ud800", [subscription])
    filters.update("After", [subscription])
    assert filters.find("T", "G\ud800") is not None
    assert filters.find("T", "After") is not None
    filters.persist()
    again = ConsumerFilters(ConfigFile(FILE, disk), lambda: 0)
    again.load()
    assert again.find("T", "After") is not None


async def test_a_write_that_is_cancelled_is_done_at_the_end() -> None:
    disk = MemoryDisk()
    filters = ConsumerFilters(ConfigFile(FILE, disk), lambda: 0)
    filters.update("G", [SubscriptionData(topic="T", **SQL)])
    with trio.CancelScope() as scope:
        scope.cancel()
        await filters.persist_in_background()
    filters.persist()
    assert b'"G"' in disk.read(FILE)


async def test_filters_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("triomq_server.broker.tables.consumer_filters.MOST_FILTERS", 2)
    filters = ConsumerFilters(None, lambda: 1)
    for number in range(50):
        data = SubscriptionData(topic=f"t{number}", sub_string="a = 1", expression_type="SQL92", sub_version=1)
        filters.update("g", [data])
    assert [filters.find(f"t{number}", "g") is not None for number in range(4)] == [True, True, False, False]
    assert len(caplog.messages) == 1, "and the log too"
    assert "the broker has 2 filters already" in caplog.text


async def test_the_bytes_of_filters_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("triomq_server.broker.tables.consumer_filters.MOST_KEPT_BYTES", 3000)
    filters = ConsumerFilters(None, lambda: 1)

    def update(topic: str, characters: int, version: int = 1, kind: str = "SQL92") -> bool:
        text = f"a = '{'x' * characters}'"
        filters.update("g", [SubscriptionData(topic=topic, sub_string=text, expression_type=kind, sub_version=version)])
        return filters.find(topic, "g") is not None

    assert [update("a", 900), update("b", 900), update("c", 900), update("d", 900)] == [True, True, True, False]
    assert "bytes of 3000 already" in caplog.text
    assert update("a", 800, 2), "in the place of its last one"
    assert not update("b", 1, kind="TAG")
    assert update("d", 900)
    for topic in "acd":
        update(topic, 1, kind="TAG")
    assert filters.kept_bytes == 0


def test_values_are_kept_while_their_texts_are_short_together() -> None:
    made: list[str] = []
    latest: LatestByText[str] = LatestByText(1000)

    def make(text: str) -> str:
        made.append(text)
        return text.upper()

    for number in range(100):
        for text in ("used", f"{number}" + "x" * 100):
            assert latest.find(text, make) == text.upper()
    assert len(made) == 101
    assert latest.find("99" + "x" * 100, make) == "99" + "X" * 100
    assert len(made) == 101
    latest.find("x" * 2000, make)  # longer than all may be
    latest.find("used", make)
    assert made[-1] == "used"
    assert sum(map(len, latest._kept)) < 1000


def test_filters_of_any_number_of_groups_leave_few_objects_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_filters, "_compiled", LatestByText(15_000))
    filters = ConsumerFilters(None, clock=lambda: 0)
    many = [f"a{number} = 1" + " OR (b > 2)" * 250 for number in range(20)]
    for number, text in enumerate(many):
        filters.update(f"G{number}", [SubscriptionData(topic="T", expression_type="SQL92", sub_string=text)])
    assert None not in [filters.find("T", f"G{number}") for number in range(len(many))]
    assert compiled("SQL92", many[-1]) is compiled("SQL92", many[-1])
    kept = [one for one in gc.get_objects() if type(one) is Sql92Filter and one.expression in many]
    assert 0 < sum(len(one.expression) for one in kept) <= 15_000
    assert compiled("SQL92", many[0]).matches({"a0": "1"})


def test_a_filter_of_the_file_that_cannot_be_compiled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    entry = {"topic": "T", "consumerGroup": "G", "expressionType": "SQL92", "expression": "a = 1 OR " * 2000 + "b = 2"}
    table = {"filterDataByTopic": {"T": {"topic": "T", "groupFilterData": {"G": entry}}}}
    disk.write("/f", json.dumps(table).encode())
    filters = ConsumerFilters(ConfigFile("/f", disk), lambda: 0)
    filters.load()
    assert filters.find("T", "G") is None
    assert "G of T" in caplog.text
