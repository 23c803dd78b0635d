"""The compiled way to answer pulls gives the handler's answers, byte for byte, for any input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from typing import Any

import attrs
import pytest
from burst_twins import Peer, access_rules, signed

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.requests.heartbeat import BROADCASTING, CLUSTERING, SubscriptionData
from triomq_protocol.requests.pull import encode_pull_request
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.tables.clients import ConsumerGroup
from triomq_server.compiled import USED
from triomq_server.config import BrokerConfig
from triomq_server.store.consume_queue import ConsumeQueue

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")

Opened = Callable[..., AbstractAsyncContextManager[Any]]
INLINE, COMMIT = 4, 1


@pytest.fixture
def config(config: BrokerConfig) -> BrokerConfig:
    """Of the log, the last 50 KiB count as being in memory."""
    store = attrs.evolve(config.store, memory_bytes=1 << 17)
    return attrs.evolve(config, store=store, slave_read_enable=True)


def fill(desk: Any, seed: int) -> None:
    """Topics, groups and what is online; messages in runs and one by one, in several files of the log."""
    chance = random.Random(seed)
    broker = desk.broker
    for topic, perm in (("T1", 6), ("T2", 6), ("NoRead", 2), ("%RETRY%CG", 6), ("Empty", 6)):
        broker.topics.ensure(topic, 3, perm)
    for name, settings in (
        ("CG", {}),
        ("Slow", {"which_broker_when_consume_slowly": 3, "broker_id": 2}),
        ("NoBroadcast", {"consume_broadcast_enable": False}),
        ("Disabled", {"consume_enable": False}),
    ):
        broker.groups.put(SubscriptionGroupConfig(group_name=name, **settings))
    for name, model in (("CG", CLUSTERING), ("NoBroadcast", BROADCASTING), ("Slow", BROADCASTING)):
        online = broker.clients.consumers[name] = ConsumerGroup(name)
        online.message_model = model
        for topic, text, kind in (("T1", "*", "TAG"), ("T2", "TagA", "TAG"), ("Empty", "a > 1", "SQL92")):
            online.subscriptions[topic] = SubscriptionData(
                topic=topic, sub_string=text, expression_type=kind, sub_version=2
            )
            online.tag_codes[topic] = frozenset([hash("TagA") & 0xFF])
    for _ in range(120):
        topic, queue_id = chance.choice((("T1", 0), ("T1", 1), ("T2", 0), ("%RETRY%CG", 0)))
        for _ in range(chance.choice((1, 1, 40))):
            desk.clock.now_ms += 1
            desk.store(topic, queue_id, desk.clock.now_ms, body=chance.randbytes(chance.choice((0, 10, 100, 1000))))


class Pulls:
    """Makes pulls from a seed: most are plain, the others differ from a plain one in something.

    Args:
        seed: of all that is random.
        signs: they are signed, most of them as they should be.
    """

    def __init__(self, seed: int, *, signs: bool = False) -> None:
        self.chance = random.Random(seed)
        self.signs = signs

    def rarely(self, usual: Any, *others: Any) -> Any:
        return self.chance.choice(others) if self.chance.random() < 0.1 else usual

    def frame(self) -> bytes:
        chance, rarely = self.chance, self.rarely
        fields = {
            "consumerGroup": rarely(chance.choice(("CG", "Slow")), "NoBroadcast", "Disabled", "Unknown", "", "Grüppe"),
            "topic": rarely("T1", "T2", "NoRead", "%RETRY%CG", "Empty", "Nope", ""),
            "queueId": rarely(str(chance.randrange(2)), "2", "3", "-1", "x", "00"),
            "queueOffset": rarely(str(chance.randrange(400)), "-1", "9999999", "1.5", "9223372036854775807"),
            "maxMsgNums": rarely("32", "0", "-5", "1", "2147483647", "2147483648"),
            "sysFlag": str(rarely(INLINE, 0, 8, 2 | INLINE, -1) | rarely(0, COMMIT)),
            "commitOffset": rarely("0", "7", "-3"),
            "suspendTimeoutMillis": rarely("1000", "-1", "x"),
            "subscription": rarely("*", "TagA", "", "* || TagA", None),
            "subVersion": rarely("1", "2", "3", "-1"),
            "expressionType": rarely("TAG", "", "SQL92", None),
        }
        items = [(name, value) for name, value in fields.items() if value is not None]
        if chance.random() < 0.3:
            chance.shuffle(items)
        if chance.random() < 0.1:
            items.pop(chance.randrange(len(items)))
        if chance.random() < 0.1:
            items.append(rarely(("bname", "broker-a"), ("topic", "T2"), ("unknown", "\\u0041")))
        if self.signs:
            items = signed(chance, items, b"")
        code = rarely(11, 10, 361, 34)
        if chance.random() < 0.05:
            return Command.request(code, fields=dict(items), opaque=5, serialize=1).encode()
        body = rarely(b"", b"body")
        members = [
            ("code", code), ("extFields", items), ("flag", rarely(0, 2, 4)), ("language", "JAVA"),
            ("opaque", chance.randrange(-5, 1 << 31)), ("serializeTypeCurrentRPC", rarely("JSON", "ROCKETMQ")),
            ("version", 401),
        ]  # fmt: skip
        if chance.random() < 0.2:
            chance.shuffle(members)
        if chance.random() < 0.05:
            members.append(rarely(("remark", "said"), ("code", 34), ("extFields", {}), ("unknown", {})))
        separators = rarely((",", ":"), (", ", ": "))
        header = _object_text(members, separators).encode()
        return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def _object_text(members: list[tuple[str, Any]], separators: tuple[str, str]) -> str:
    """A JSON object; a list among the values is one, too, and may have a name twice."""
    parts = [
        json.dumps(name) + separators[1] + (
            _object_text(value, separators) if isinstance(value, list) else json.dumps(value, separators=separators)
        )
        for name, value in members
    ]  # fmt: skip
    return "{" + separators[0].join(parts) + "}"


async def answered(desk: Any, frame: bytes) -> bytes:
    """What the handlers answer."""
    (command,) = FrameDecoder().feed(frame)
    link = Peer()
    link.draining = True  # so that the answer is in one piece
    try:
        return await desk.frame(frame, link) or b""
    except Exception as error:  # noqa: BLE001 (the hub makes it an answer; here both ways must fail alike)
        return f"{type(error).__name__}: {error} {command.opaque}".encode()


def content(desk: Any) -> object:
    """What pulls change."""
    broker = desk.broker
    gets = {key: (one.calls, one.messages, one.size_bytes, one.age_ms) for key, one in broker.stats._gets.items()}
    return broker.offsets.table, gets, broker.stats.gets_found, broker.stats.gets_missed


@pytest.mark.parametrize("seed", range(6))
async def test_both_ways_answer_the_same(seed: int, new_desk: Opened, clock: Any) -> None:
    assert await compare(Pulls(seed), seed, new_desk, clock) > 50


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("white", [(), ("10.0.0.*",), ("127.0.0.1",)], ids=["no host", "others", "all"])
async def test_both_ways_answer_the_same_of_what_is_signed(
    seed: int, white: tuple[str, ...], new_desk: Opened, clock: Any
) -> None:
    opened = partial(new_desk, rules=access_rules(*white))
    assert await compare(Pulls(seed, signs=True), seed, opened, clock) > 20


async def compare(pulls: Pulls, seed: int, new_desk: Opened, clock: Any) -> int:
    """Bring the same pulls to two brokers, one by each way; returns how many the compiled way has answered."""
    taken_frames = 0
    async with new_desk() as first, new_desk() as second:
        for desk in (first, second):
            clock.now_ms = 1_700_000_000_000
            fill(desk, seed)
        assert len(first.broker.store.commitlog.segments.items) > 2
        burst = second.handlers.bursts[1].take
        for _ in range(500):
            clock.now_ms += 1
            frame = pulls.frame()
            wanted = await answered(first, frame)
            link = Peer()
            link.draining = pulls.chance.random() < 0.2
            taken = burst(link, frame + frame[:20])
            assert taken in {0, len(frame)}
            found = b"".join(link.unsent) if taken else await answered(second, frame)
            assert found == wanted, frame
            assert link.unsent_bytes == sum(map(len, link.unsent))
            assert link.draining is False or all(type(piece) is bytes for piece in link.unsent)
            assert content(first) == content(second), frame
            taken_frames += taken > 0
        assert second.broker.traffic.requests[11] == taken_frames
    return taken_frames


def plain(opaque: int = 1, **more: Any) -> bytes:
    fields = {
        "consumer_group": "CG", "topic": "T1", "queue_id": 0, "queue_offset": 0, "max_msg_nums": 32, "sys_flag": INLINE,
        "commit_offset": 0, "suspend_timeout_millis": 0, "subscription": "*",
    }  # fmt: skip
    return encode_pull_request(opaque, **{**fields, **more})


async def test_what_the_clients_send_is_plain(new_desk: Opened, clock: Any, vectors: Any) -> None:
    """Our own pulls, and one of the real Java client."""
    clock.now_ms = 1_700_000_000_000
    async with new_desk() as desk:
        fill(desk, 0)
        burst = desk.handlers.bursts[1].take
        for frame in (plain(), plain(sys_flag=0, subscription=None, sub_version=2), plain(broker_name="broker-a")):
            assert burst(Peer(), frame) == len(frame)
        exchanges = json.loads((vectors / "exchanges.json").read_text())["cases"]
        [recorded] = [
            bytes.fromhex(one["requestHex"]) for one in exchanges if one["name"] == "11_client_to_master__0_1"
        ]
        (command,) = FrameDecoder().feed(recorded)
        assert command.code == RequestCode.PULL_MESSAGE
        fields = command.fields
        assert fields is not None
        topic, group, queue_id = fields["topic"], fields["consumerGroup"], int(fields["queueId"])
        desk.broker.topics.ensure(topic, 4, 6)
        desk.broker.groups.put(SubscriptionGroupConfig(group_name=group))
        online = desk.broker.clients.consumers[group] = ConsumerGroup(group)
        wanted = SubscriptionData(topic=topic, sub_string="*", sub_version=int(fields["subVersion"]))
        online.subscriptions[topic] = wanted
        desk.store(topic, queue_id, *[clock.now_ms] * 5)
        link = Peer()
        assert burst(link, recorded) == len(recorded)
        (answer,) = FrameDecoder().feed(b"".join(link.unsent))
        assert answer.fields is not None
        assert answer.fields["nextBeginOffset"] == "5"
        assert desk.broker.offsets.query(group, topic, queue_id) == int(fields["commitOffset"]) == 1


async def test_it_stops_when_there_is_enough_to_write(new_desk: Opened, clock: Any) -> None:
    clock.now_ms = 1_700_000_000_000
    async with new_desk() as desk:
        fill(desk, 0)
        burst = desk.handlers.bursts[1].take
        link = Peer()
        frame = plain()
        answer = burst(link, frame) and link.unsent_bytes
        taken = burst(link, frame * 100)
        assert 0 < taken < 100 * len(frame)
        assert 32_768 <= link.unsent_bytes < 32_768 + answer


async def test_a_change_of_settings_is_seen_at_once(new_desk: Opened, clock: Any) -> None:
    clock.now_ms = 1_700_000_000_000
    async with new_desk() as desk:
        fill(desk, 0)
        burst = desk.handlers.bursts[1].take
        broker, frame = desk.broker, plain()
        assert burst(Peer(), frame)
        broker.topics.table["T1"].perm = 2
        assert not burst(Peer(), frame)
        broker.topics.table["T1"].perm = 6
        broker.store.set_flag(1)
        assert not burst(Peer(), frame)
        broker.store.clear_flag(1)
        broker.config.broker_permission = 2
        for changed in broker.on_config_change:
            changed()
        assert not burst(Peer(), frame)
        broker.config.broker_permission = 6
        for changed in broker.on_config_change:
            changed()
        assert burst(Peer(), frame)


async def test_a_file_that_cannot_be_read_is_left_to_the_handler(
    new_desk: Opened, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers what was wrong; the link stays."""

    def fail(*_: object) -> None:
        raise OSError("Cannot allocate memory")

    clock.now_ms = 1_700_000_000_000
    async with new_desk() as desk:
        fill(desk, 0)
        burst = desk.handlers.bursts[1].take
        link = Peer()
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "locate", fail)
            assert burst(link, plain(sys_flag=INLINE | COMMIT, commit_offset=3)) == 0
        assert (link.unsent, link.unsent_bytes) == ([], 0)
        assert desk.broker.offsets.query("CG", "T1", 0) == -1
        assert burst(link, plain())


@pytest.mark.parametrize("at", range(0, 240, 3))
async def test_a_header_that_is_cut_or_altered_is_left_or_answered_as_by_the_handler(
    at: int, new_desk: Opened, clock: Any
) -> None:
    clock.now_ms = 1_700_000_000_000
    frame = plain()
    async with new_desk() as desk:
        desk.broker.topics.ensure("T1", 4, 6)
        desk.store("T1", 0, clock.now_ms)
        await answered(desk, frame)  # makes the group
        burst = desk.handlers.bursts[1].take
        assert burst(Peer(), frame[:at]) == 0
        for value in (0, 34, 92, 125, 255):
            altered = bytearray(frame)
            altered[8 + at % (len(frame) - 8)] = value
            link = Peer()
            if burst(link, bytes(altered)):
                assert b"".join(link.unsent) == await answered(desk, bytes(altered))


@pytest.mark.parametrize("compiled", [True, False])
async def test_the_longest_lookup_is_noted_by_either_way(compiled: bool, new_desk: Opened) -> None:
    async with new_desk() as desk:
        fill(desk, 1)
        desk.broker.store.times.now = count(0.0, 0.007).__next__
        if compiled:
            assert desk.handlers.bursts[1].take(Peer(), plain())
        else:
            await answered(desk, plain())
        assert desk.broker.store.times.longest_get_ms == 7
