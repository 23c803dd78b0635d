"""Requests that no well-behaved client sends, made from a seed: bytes only, no sockets.

Each is one frame, or the beginning of one. They name no broker, topic or group of the innocent clients beside them, and
no usable setting: a server without access control would rightly obey those.
"""

from __future__ import annotations

import enum
import json
import random
import struct
from typing import Any

import attrs
import msgspec

import triomq_protocol.requests as requests
from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.header import Header
from triomq_server.broker.requests.clients import MOST_GROUPS
from triomq_server.config import BrokerConfig, StoreConfig
from triomq_server.config.settings import keys_of
from triomq_server.store.commitlog import MOST_BATCH_MESSAGES

TOPICS = ("stranger-1", "stranger-2", "stranger-3")
"""Topics that the strangers may use up; the first exists."""
GROUPS = ("strangers", "other-strangers")
_HASH_MODULUS = (1 << 61) - 1
_CODES = [int(code) for code in RequestCode]
_OWN_CODES = (29_001, 29_002, 29_003, 29_004)
_CONFIGURING = (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)
_HEADERS = [
    kind
    for name in sorted(vars(requests))
    if isinstance(kind := vars(requests)[name], type) and issubclass(kind, Header) and "Request" in name
]
_FIELDS = sorted({field.encode_name for kind in _HEADERS for field in msgspec.structs.fields(kind)})
_NUMERIC_SETTINGS = [
    key for kind in (BrokerConfig, StoreConfig) for key, field in keys_of(kind).items() if "int" in str(field.type)
]
_NUMBERS = [0, 1, -1, 7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63, 10**40]
_NUMERALS = ["", " 3", "3 ", "+3", "3.0", "3e2", "0x3", "1_0", "٣", "NaN", "Infinity", "1e999", "true", "null", "-"]
_TEXTS = [
    "",
    ".",
    "..",
    "../../outside",
    "a/b\\c",
    "null",
    "\x00",
    "line\nbreak",
    "tab\t",
    "\u2028",
    "\x1b[31m",
    "é" * 200,
    "n" * 255,
    "n" * 256,
    "n" * 32_768,
    "%RETRY%strangers",
    "%DLQ%..",
    "%s%n{}",
    "${env:PATH}",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "OFFSET_MOVED_EVENT",
    "|",
    "*",
    "a||b||",
    "key IN ('a'",
    "((((" * 200,
    "NOT " * 500 + "a",
]
_PROPERTIES = [
    "",
    "\x01",
    "\x02" * 50,
    "TAGS\x01red\x02",
    "KEYS\x01" + "k " * 400 + "\x02",
    "DELAY\x0199999999999\x02",
    "DELAY\x01-3\x02",
    "DELAY\x013\x02REAL_TOPIC\x01..\x02REAL_QID\x01-9\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01strangers\x02",
    "UNIQ_KEY\x01../../outside\x02",
    "WAIT\x01perhaps\x02",
    "X\x01" + "y" * 40_000 + "\x02",
    "RETRY_TOPIC\x01..\x02ORIGIN_MESSAGE_ID\x01zz\x02",
]


class Kind(enum.StrEnum):
    """What is wrong with a frame."""

    ODD_VALUES = "odd values"
    ODD_BODY = "odd body"
    SETTINGS = "settings"
    SEND = "send"
    PULL = "pull"
    BINARY = "binary header"
    MUTATED = "mutated bytes"
    ODD_JSON = "odd JSON"
    INTEGER_KEYS = "integer keys"
    MANY = "huge counts"
    LARGE_BATCH = "large batch"
    LONG_FILTER = "long filter"
    MANY_GROUPS = "many groups"
    LENGTHS = "wrong lengths"
    NOISE = "noise"


CLOSING = frozenset({Kind.MUTATED, Kind.LENGTHS, Kind.NOISE})
"""After these a server may close the connection, and need not answer what follows."""
_WEIGHTS = {
    Kind.ODD_VALUES: 30,
    Kind.ODD_BODY: 8,
    Kind.SETTINGS: 3,
    Kind.SEND: 14,
    Kind.PULL: 12,
    Kind.BINARY: 12,
    Kind.MUTATED: 6,
    Kind.ODD_JSON: 8,
    Kind.INTEGER_KEYS: 1,
    Kind.MANY: 0.15,
    Kind.LARGE_BATCH: 0.003,
    Kind.LONG_FILTER: 0.1,
    Kind.MANY_GROUPS: 0.1,
    Kind.LENGTHS: 2,
    Kind.NOISE: 2,
}


@attrs.frozen
class HostileFrame:
    """What is sent, and of what kind it is."""

    kind: Kind
    data: bytes


class FrameMaker:
    """An endless supply of hostile frames; the same seed gives the same ones."""

    def __init__(self, seed: int | str) -> None:
        self._chance = random.Random(f"frames {seed}")
        self._opaque = 0

    def one(self) -> HostileFrame:
        """The next frame, of a random kind."""
        return self.of(self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])

    def of(self, kind: Kind) -> HostileFrame:
        """A frame of this kind."""
        make = {
            Kind.ODD_VALUES: self._odd_values,
            Kind.ODD_BODY: self._odd_body,
            Kind.SETTINGS: self._settings,
            Kind.SEND: self._send,
            Kind.PULL: self._pull,
            Kind.BINARY: self._binary,
            Kind.MUTATED: self._mutated,
            Kind.ODD_JSON: self._odd_json,
            Kind.INTEGER_KEYS: self._integer_keys,
            Kind.MANY: self._many,
            Kind.LARGE_BATCH: self._large_batch,
            Kind.LONG_FILTER: self._long_filter,
            Kind.MANY_GROUPS: self._many_groups,
            Kind.LENGTHS: self._lengths,
            Kind.NOISE: self._noise,
        }[kind]
        return HostileFrame(kind, make())

    def report(self) -> bytes:
        """What an unknown peer sends to a HA port: offsets of a slave, whole or in part."""
        chance = self._chance
        if chance.random() < 0.2:
            return chance.randbytes(chance.randrange(1, 3000))
        numbers = [chance.choice([0, -1, 1, 2**63 - 1, -(2**63), 2**31, chance.randrange(1 << 24)]) for _ in range(100)]
        return struct.pack(">100q", *numbers)[: chance.choice([8, 80, 800, chance.randrange(1, 800)])]

    def _code(self) -> int:
        code = self._chance.choice([*_CODES, *_OWN_CODES, -1, 0, 16, 99_999, 2**31 - 1])
        return RequestCode.GET_MAX_OFFSET if code in _CONFIGURING else code

    def _text(self) -> str:
        chance = self._chance
        draw = chance.random()
        if draw < 0.35:
            return str(chance.choice(_NUMBERS))
        if draw < 0.5:
            return chance.choice(_NUMERALS)
        if draw < 0.75:
            return chance.choice(_TEXTS)
        return chance.choice([*TOPICS, *GROUPS])

    def _fields(self) -> dict[str, str]:
        """Every field of a random header class, each with a value of any kind."""
        kind = self._chance.choice(_HEADERS)
        fields = {field.encode_name: self._value(field.encode_name) for field in msgspec.structs.fields(kind)}
        for _ in range(self._chance.randrange(3)):
            fields[self._chance.choice(_FIELDS)] = self._text()
        if self._chance.random() < 0.3 and fields:
            del fields[self._chance.choice(list(fields))]
        return fields

    def _value(self, name: str) -> str:
        if self._chance.random() < 0.5:
            return self._text()
        if name in ("topic", "b", "originTopic"):
            return self._chance.choice(TOPICS)
        if "roup" in name or name == "a":
            return self._chance.choice(GROUPS)
        return str(self._chance.choice([0, 1, 3, 32]))

    def _frame(self, code: int, fields: object, body: bytes = b"", flag: int | None = None) -> bytes:
        self._opaque += 1
        header = {
            "code": code,
            "flag": self._chance.choice([0, 0, 0, 0, 1, 2, 3]) if flag is None else flag,
            "language": "JAVA",
            "opaque": self._opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": self._chance.choice([407, 407, 0, -1, 300]),
            "extFields": fields,
        }
        return self._framed(json.dumps(header).encode(), body)

    def _framed(self, header: bytes, body: bytes = b"", binary: int = 0) -> bytes:
        return struct.pack(">iI", 4 + len(header) + len(body), binary << 24 | len(header)) + header + body

    def _odd_values(self) -> bytes:
        return self._frame(self._code(), self._fields(), self._chance.randbytes(self._chance.choice([0, 0, 9])))

    def _odd_body(self) -> bytes:
        """Requests whose body is JSON, with members of the wrong type or none."""
        chance = self._chance
        odd: list[Any] = [None, True, [], {}, "x", -1, 2**70, 1.5, [None], {"a": []}]
        subscription = {
            "topic": chance.choice([*TOPICS, *odd]),
            "subString": chance.choice(["*", "a||b", *odd]),
            "subVersion": chance.choice([1, 2**62, *odd]),
            "expressionType": chance.choice(["TAG", "SQL92", *odd]),
            "tagsSet": chance.choice([["a"], *odd]),
            "codeSet": chance.choice([[97], *odd]),
        }
        group = {
            "groupName": chance.choice([*GROUPS, "\ud800", "g" * 300, *odd]),
            "subscriptionDataSet": chance.choice([[subscription], [subscription] * 20, *odd]),
            "messageModel": chance.choice(["CLUSTERING", *odd]),
        }
        queue = {"topic": TOPICS[0], "brokerName": "elsewhere", "queueId": chance.choice([0, -1, 2**40, "x"])}
        topic = {"topicName": TOPICS[1], "readQueueNums": chance.choice(_NUMBERS), "writeQueueNums": 1, "perm": 6}
        table = {chance.choice([*TOPICS, *_TEXTS]): topic}
        version = {"counter": chance.choice(_NUMBERS), "timestamp": 1}
        code, body = chance.choice(
            [
                (RequestCode.HEART_BEAT, {"clientID": f"c{chance.randrange(9)}", "consumerDataSet": [group]}),
                (RequestCode.HEART_BEAT, {"clientID": chance.choice(odd), "producerDataSet": chance.choice(odd)}),
                (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": GROUPS[0], "clientId": "c", "mqSet": [queue] * 30}),
                (RequestCode.UNLOCK_BATCH_MQ, {"consumerGroup": GROUPS[0], "mqSet": chance.choice([[queue], *odd])}),
                (RequestCode.CHECK_CLIENT_CONFIG, {"subscriptionData": subscription, "group": GROUPS[0]}),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group | {"retryMaxTimes": chance.choice(_NUMBERS)}),
                (
                    RequestCode.REGISTER_BROKER,
                    {"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version}},
                ),
            ]
        )
        fields = {
            "brokerName": f"elsewhere-{chance.randrange(3)}",
            "brokerAddr": f"127.0.0.1:{chance.randrange(1, 9)}",
            "clusterName": "strangers",
            "haServerAddr": "127.0.0.1:1",
            "brokerId": str(chance.choice([0, 1, *_NUMBERS])),
        }
        return self._frame(code, fields, json.dumps(body).encode())

    def _settings(self) -> bytes:
        """Numbers that no setting may have, for settings that are numbers."""
        value = self._chance.choice([-(2**63), 2**63, 10**30, "nan", "ten", "", "3.5", "../outside", "1\\n2"])
        line = f"{self._chance.choice(_NUMERIC_SETTINGS)}={value}\n"
        return self._frame(self._chance.choice(_CONFIGURING), None, line.encode(), flag=0)

    def _send(self) -> bytes:
        chance = self._chance
        properties = chance.choice(_PROPERTIES)
        fields = {
            "a": GROUPS[0],
            "b": chance.choice(TOPICS),
            "c": "TBW102",
            "d": "4",
            "e": str(chance.choice([0, 1, 2, 3, -1, 9, 2**31 - 1])),
            "f": str(chance.choice([0, 0, 1, 4, 8, 12, 255])),
            "g": str(chance.choice([0, 1_700_000_000_000, *_NUMBERS])),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "l": "0",
            "m": chance.choice(["false", "false", "true"]),
        }
        body = chance.randbytes(chance.choice([0, 1, 30, 300]))
        code = RequestCode.SEND_MESSAGE_V2
        if chance.random() < 0.2:
            code, body = RequestCode.SEND_BATCH_MESSAGE, b"".join(self._batch_part() for _ in range(4))
        return self._frame(code, fields, body)

    def _batch_part(self) -> bytes:
        chance = self._chance
        body, properties = chance.randbytes(chance.randrange(20)), b"TAGS\x01a\x02"
        total = chance.choice([20 + len(body) + 2 + len(properties), 0, -1, 2**31 - 1])
        lengths = chance.choice([len(body), len(body), -1, 2**31 - 1]), chance.choice([len(properties), -1, 32_767])
        head = struct.pack(">iiiii", total, 0, 0, 0, lengths[0])
        return head + body + struct.pack(">h", lengths[1]) + properties

    def _large_batch(self) -> bytes:
        """Millions of keys, or of bytes that look like the names of properties, or more empty messages than a batch may
        have, or just as many.
        """
        chance = self._chance
        properties = chance.choice([b"", b"KEYS\x01" + b"a " * 16_000, b"A\x01" + b"xKEYS\x01" * 5000, b"TAGS\x01%d"])
        most = chance.choice([MOST_BATCH_MESSAGES, 1 << 20])
        part = struct.pack(">iiiiih", 0, 0, 0, 0, 0, len(properties)) + properties
        values = (GROUPS[0], TOPICS[0], "TBW102", "4", "0", "0", "1", "0", "", "0")
        fields = {**dict(zip("abcdefghij", values, strict=True)), "m": "true"}
        return self._frame(RequestCode.SEND_BATCH_MESSAGE, fields, part * min(most, 4_190_000 // len(part)), flag=0)

    def _long_filter(self) -> bytes:
        """A pull with the longest allowed filter, which has not been sent before."""
        name = f"a{self._chance.randrange(10**6)}"
        operands = self._chance.choice([100, 300, 500, 511])
        text = " or ".join(f"{name}={number}" for number in range(operands))
        fields = {
            "consumerGroup": GROUPS[0],
            "topic": TOPICS[0],
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": text,
            "subVersion": "1",
            "expressionType": "SQL92",
        }
        return self._frame(RequestCode.PULL_MESSAGE, fields, flag=0)

    def _many_groups(self) -> bytes:
        """A heartbeat that takes all groups that a connection may have."""
        chance = self._chance
        names = [f"many-{chance.randrange(10**6)}" for _ in range(MOST_GROUPS)]
        data: dict[str, object] = {"clientID": f"many-{chance.randrange(100)}"}
        if chance.random() < 0.5:
            data["producerDataSet"] = [{"groupName": name} for name in names]
        else:
            data["consumerDataSet"] = [{"groupName": name, "subscriptionDataSet": []} for name in names]
        return self._frame(RequestCode.HEART_BEAT, None, json.dumps(data).encode(), flag=0)

    def _pull(self) -> bytes:
        chance = self._chance
        fields = {
            "consumerGroup": chance.choice([*GROUPS, f"g{chance.randrange(10**6)}"]),
            "topic": TOPICS[0],
            "queueId": str(chance.choice([0, 1, 2, 3, -1])),
            "queueOffset": str(chance.choice([0, 1, 10, 10**6, -1, 2**62])),
            "maxMsgNums": str(chance.choice([1, 32, 0, -1, 2**31 - 1])),
            "sysFlag": str(chance.randrange(32)),
            "commitOffset": str(chance.choice(_NUMBERS)),
            "suspendTimeoutMillis": str(chance.choice([0, 100, 15_000, 2**62, -1])),
            "subscription": chance.choice(["*", "a", "a||b", "key = 'x'", *_TEXTS]),
            "subVersion": str(chance.choice(_NUMBERS)),
            "expressionType": chance.choice(["TAG", "SQL92", "", "x"]),
        }
        return self._frame(RequestCode.PULL_MESSAGE, fields)

    def _binary(self) -> bytes:
        """Java's other serialization, with lengths that may not fit."""
        chance = self._chance
        area = b""
        for name, value in self._fields().items():
            key, text = name.encode(), value.encode()[:30_000]
            lengths = len(key), len(text)
            if chance.random() < 0.02:
                lengths = chance.choice([(-1, len(text)), (len(key), -1), (len(key), 2**31 - 1), (32_767, 0)])
            area += struct.pack(">h", lengths[0]) + key + struct.pack(">i", lengths[1]) + text
        self._opaque += 1
        code = self._code()
        start = struct.pack(">hBhii", code if code < 2**15 else 1, chance.randrange(256), 407, self._opaque, 0)
        length = len(area) if chance.random() < 0.95 else chance.choice([-1, 0, 2**31 - 1])
        return self._framed(start + struct.pack(">i", 0) + struct.pack(">i", length) + area, binary=1)

    def _mutated(self) -> bytes:
        data = bytearray(self.of(self._chance.choice([Kind.ODD_VALUES, Kind.SEND, Kind.PULL, Kind.BINARY])).data)
        for _ in range(self._chance.randrange(1, 8)):
            data[self._chance.randrange(8, len(data))] = self._chance.randrange(256)
        return bytes(data)

    def _odd_json(self) -> bytes:
        chance = self._chance
        depth = chance.choice([10, 100, 5000])
        values = [b"1e999", b"9" * 400, b'"30"', b"null", b"{}", b"[]", b"-0", b"30.5", b"true", b"\xff", b"'30'"]
        texts = [
            b"",
            b"{",
            b"[" * depth,
            b'{"extFields":' * depth,
            b'{"code":30,"code":31,"opaque":1,"opaque":"x","extFields":{"topic":"a","topic":"b"}}',
            b'{code:30,flag:"0",extFields:{topic:"\\ud800",queueId:0}}',
            b'{"code":30,"extFields":{"a":{"b":[1,{"c":null}]},"d":[[[]]]}}',
            b'{"code":' + chance.choice(values) + b',"opaque":' + chance.choice(values) + b"}",
            b'{"code":30,"language":"KLINGON","flag":' + chance.choice(values) + b"}",
            b"/*" * depth,
            b"\xef\xbb\xbf{}",
            b'{"code":30,"remark":"' + b"r" * chance.choice([10, 100_000]) + b'"}',
            b'{"code":30,"extFields":{' + b'"k":"v",' * 3000 + b'"z":1}}',
        ]
        return self._framed(chance.choice(texts), chance.randbytes(chance.choice([0, 5])))

    def _integer_keys(self) -> bytes:
        """Keys without quotes that all have one hash value, were they kept as numbers."""
        count = self._chance.choice([100, 5000, 12_000])
        members = ",".join(f"{number * _HASH_MODULUS}:1" for number in range(1, count))
        return self._framed(b'{"code":30,"extFields":{' + members.encode() + b"}}")

    def _many(self) -> bytes:
        """Few bytes that ask for much, or many small things in one body."""
        chance = self._chance
        groups = [{"groupName": f"many-{chance.randrange(10**6)}", "subscriptionDataSet": []} for _ in range(3000)]
        topics = {
            f"many-{number}": {"topicName": f"many-{number}", "readQueueNums": 2**31 - 1, "writeQueueNums": 2**31 - 1}
            for number in range(3000)
        }
        queues = [{"topic": TOPICS[0], "brokerName": "x", "queueId": number} for number in range(5000)]
        wrapper = {"topicConfigTable": topics, "dataVersion": {"counter": 1, "timestamp": 1}}
        fields = {
            "brokerName": "elsewhere-9",
            "brokerAddr": "127.0.0.1:9",
            "clusterName": "strangers",
            "haServerAddr": "127.0.0.1:1",
            "brokerId": "0",
        }
        code, body = chance.choice(
            [
                (RequestCode.HEART_BEAT, {"clientID": "many", "consumerDataSet": groups}),
                (RequestCode.REGISTER_BROKER, {"topicConfigSerializeWrapper": wrapper}),
                (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": GROUPS[0], "clientId": "many", "mqSet": queues}),
                (RequestCode.HEART_BEAT, [[]] * 200_000),
            ]
        )
        return self._frame(code, fields, json.dumps(body).encode(), flag=0)

    def _lengths(self) -> bytes:
        """A frame that announces what does not follow, and the connection ends or continues with other bytes."""
        whole = self._odd_values()
        total, header = self._chance.choice(
            [(-1, 0), (0, 0), (3, 0), (8, 100), (2**31 - 1, 10), (17 << 20, 50), (50, 50)]
        )
        announced = struct.pack(">iI", total, header)
        return self._chance.choice([announced, announced + whole[8:], whole[: self._chance.randrange(1, len(whole))]])

    def _noise(self) -> bytes:
        noise = self._chance.randbytes(self._chance.randrange(1, 400))
        return self._chance.choice(
            [noise, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
        )
