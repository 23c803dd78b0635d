"""Random receives for both ways of storing sends: the compiled one with what it leaves to the handlers, and the
handlers alone.

As a program it runs for the given number of receives: `python burst_twins.py --receives 1000000`.
"""

from __future__ import annotations

import importlib.util
import json
import random
import struct
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import click
import trio
import trio.testing

from triomq_protocol.acl import sign
from triomq_protocol.properties import encode_properties_bytes
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.wire.command import Command
from triomq_server.acl.accounts import AccessRules, Account
from triomq_server.acl.addresses import matcher
from triomq_server.acl.permissions import Permission
from triomq_server.config import FlushDiskType

NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
    "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes",
    "m": "batch", "n": "bname",
}  # fmt: skip
ACCOUNTS = {"may do most": "one secret", "may do nothing": "two secrets", "comes from anywhere": "three secrets"}
"""Access keys and secrets."""
MOST = {"T1": Permission.PUB | Permission.SUB, "T2": Permission.PUB, "%RETRY%CG": Permission.SUB}
_LENGTH_AT = 16
"""Where the first element of a batch says how long its body is."""


class Twins:
    """Makes receives from one seed.

    Args:
        seed: of all that is random.
        signs: sends are signed, most of them as they should be, by one of `ACCOUNTS`.
    """

    def __init__(self, seed: int, *, signs: bool = False) -> None:
        self.chance = random.Random(seed)
        self.signs = signs
        self.odd = False

    def receive(self, most: int = 12) -> bytes:
        """Some frames, one after the other."""
        return b"".join([self.frame() for _ in range(self.chance.randint(1, most))])

    def frame(self) -> bytes:
        """One send, mostly plain, or another request."""
        chance = self.chance
        self.odd = chance.random() < 0.4
        if chance.random() < 0.03:
            return Command.request(chance.choice([34, 35, 11, 999]), fields={"topic": "T1"}, opaque=7).encode()
        batch = chance.random() < 0.2
        body = self.batch_body() if batch else self.body()
        fields = {
            "a": "PG", "b": self.rarely("T1", ["T2", "T3", "%RETRY%G", "SCHEDULE_TOPIC_XXXX", "new topic", "", "Tü", "TBW102"]),
            "c": "TBW102", "d": "4", "e": self.rarely(str(chance.randrange(4)), ["-1", "9", "03", "x", "99999999999"]),
            "f": self.rarely("0", ["1", "2", "4", "8", "12", "16", "48", "769", "-1", "257"]),
            "g": self.rarely("1700000000000", ["0", "-5", "9223372036854775807", "1.5", "007"]),
            "h": self.rarely("0", ["7", "-3", "2147483647", "2147483648", ""]),
            "i": self.properties(), "j": self.rarely("0", ["3", "-1", "none", "2147483648"]),
            "k": self.rarely("false", ["true", "TRUE", "1"]), "m": self.rarely("true" if batch else "false", ["0", "False"]),
        }  # fmt: skip
        if chance.random() < 0.3:
            fields["n"] = "broker-a"
        if chance.random() < 0.1:
            fields["l"] = self.rarely("16", ["x", "-1"])
        if self.odd and chance.random() < 0.15:
            fields.pop(chance.choice(list(fields)))
        code = chance.choice([310, 310, 310, 10, 320])
        pairs = list(fields.items())
        if self.odd and chance.random() < 0.5:
            chance.shuffle(pairs)
        if self.odd and chance.random() < 0.1:
            pairs.append((chance.choice([*list(fields), "z"]), "0"))
        if code == 10:
            pairs = [(NAMES.get(name, name), value) for name, value in pairs]
        if self.odd and chance.random() < 0.1:
            return Command.request(
                code, fields=dict(pairs), body=body, opaque=chance.randrange(9999), serialize=1
            ).encode()
        return self.json_frame(code, pairs, body)

    def json_frame(self, code: int, pairs: list[tuple[str, str]], body: bytes) -> bytes:
        chance = self.chance
        if self.signs:
            pairs = signed(self.chance, pairs, body)
        plain = not self.odd or chance.random() < 0.8
        quote = json.dumps if plain else (lambda text: json.dumps(text, ensure_ascii=False))
        ext = ",".join([f"{quote(name)}:{quote(value)}" for name, value in pairs])
        members = [f'"code":{code}', f'"extFields":{{{ext}}}', f'"flag":{self.rarely("0", ["2", "1", "3", "6"])}']
        members.append(f'"language":{self.rarely(chr(34) + "JAVA" + chr(34), ["null", "3", chr(34) + "GO" + chr(34)])}')
        members.append(f'"opaque":{self.rarely(str(chance.randrange(1 << 31)), ["-7", "2147483648", "0", "01"])}')
        if chance.random() < 0.9:
            members.append(self.rarely('"serializeTypeCurrentRPC":"JSON"', ['"serializeTypeCurrentRPC":"ROCKETMQ"']))
        members.append('"version":399')
        if self.odd and chance.random() < 0.1:
            chance.shuffle(members)
        if self.odd and chance.random() < 0.1:
            members.append(
                chance.choice(
                    ['"remark":null', '"remark":"x"', '"version":7', '"Code":7', '"other":1', '"code":310', '"code":10']
                )
            )
        text = ("," if plain or chance.random() < 0.7 else ", ").join(members)
        header = ("{" + text + "}").encode()
        if self.odd and chance.random() < 0.05:
            altered = bytearray(header)
            altered[chance.randrange(len(header))] = chance.choice(b'"\\{},:0 x\x01\xff')
            header = bytes(altered)
        return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body

    def rarely(self, usual: str, others: list[str]) -> str:
        return usual if not self.odd or self.chance.random() < 0.93 else self.chance.choice(others)

    def body(self) -> bytes:
        size = self.chance.choice([1, 8, 100, 192, 193, 1000, 0 if self.chance.random() < 0.1 else 5, 5000])
        return self.chance.randbytes(size)

    def properties(self) -> str:
        chance = self.chance
        key = "".join(chance.choices("0123456789ABCDEF", k=32))
        segments = [f"UNIQ_KEY\x01{key}"] if chance.random() < 0.9 else []
        for text, often in (
            ("WAIT\x01true", 0.6), ("TAGS\x01TagA", 0.5), ("KEYS\x01k1 k2", 0.2), ("CLUSTER\x01other", 0.03),
            ("WAIT\x01", 0.03), ("WAIT\x01false", 0.05), ("WAIT\x01TRUE", 0.03), ("TAGS\x01", 0.03), ("", 0.1), ("DELAY\x013", 0.03), ("TRAN_MSG\x01true", 0.03),
            ("a\x01b", 0.3), ("a\x01c", 0.03), ("\x01v", 0.03), ("none", 0.03), ("XWAIT\x01x", 0.03), ("WAIT", 0.03), ("TAGS\x01Tag\x01B", 0.03), ("KEYS\x01 ", 0.03),
            ("q\x01say \"hi\" \\ / \n\t", 0.05), ("TAGS\x01ü", 0.02), ("UNIQ_KEY\x01short", 0.03), ("DELAY\x010", 0.02),
        ):  # fmt: skip
            if chance.random() < often and (self.odd or often > 0.1):
                segments.append(text)
        if chance.random() < 0.3:
            chance.shuffle(segments)
        return "\x02".join(segments) + ("\x02" if chance.random() < 0.3 else "")

    def batch_body(self) -> bytes:
        chance = self.chance
        elements = []
        for _ in range(chance.choice([0, 1, 2, 5, 32])):
            properties = self.properties().encode() if chance.random() < 0.9 else b""
            elements.append(encode_batch_element(self.body(), properties, chance.choice([0, 0, 9])))
        data = b"".join(elements)
        if self.odd and chance.random() < 0.1 and data:
            data = data[: chance.randrange(len(data))]
        if self.odd and chance.random() < 0.2 and len(data) > _LENGTH_AT + 4:
            wrong = chance.choice([0, 1, -1, 1 << 22, 0x7FFFFFE9, 0x7FFFFFEA, 0x7FFFFFFF, -0x80000000])
            data = data[:_LENGTH_AT] + struct.pack(">i", wrong) + data[_LENGTH_AT + 4 :]
        if self.odd and chance.random() < 0.1:
            data += chance.randbytes(chance.randrange(40))
        return data or encode_properties_bytes({"a": "b"})


def signed(chance: random.Random, pairs: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    """The fields of a request with a signature, which is not always right."""
    by = chance.choices(["may do most", "may do nothing", "comes from anywhere", "nobody"], [16, 1, 1, 1])[0]
    secret = ACCOUNTS.get(by, "secret") if chance.random() < 0.95 else "another secret"
    token = "a token" if chance.random() < 0.1 else None
    fields = sign(dict(pairs), body, access_key=by, secret_key=secret, security_token=token)
    added: list[tuple[str, str]] = [
        (name, fields[name] or "") for name in ("SecurityToken", "AccessKey", "Signature") if name in fields
    ]
    if chance.random() < 0.03:
        del added[chance.randrange(len(added))]
    if chance.random() < 0.03:
        added.append(chance.choice([*pairs, *added, ("b", "T2"), ("topic", "T2")]))
    pairs = [*pairs, *added]
    if chance.random() < 0.3:
        chance.shuffle(pairs)
    return pairs


class Peer:
    """The broker's end of a link, as far as sends need one."""

    def __init__(self) -> None:
        self.peer = "127.0.0.1:40000"
        self.peer_host = bytes((127, 0, 0, 1)) + (40000).to_bytes(4, "big")
        self.closed = self.draining = False
        self.unsent: list[bytes] = []
        self.unsent_bytes = 0
        self.sent: list[bytes] = []
        self.send = self.sent.append


class Way:
    """One broker, and a link that brings it receives.

    Args:
        desk: the broker and its handlers.
        compiled: whether the compiled module comes first.
    """

    def __init__(self, desk: Any, *, compiled: bool) -> None:
        self.desk = desk
        self.link = Peer()
        self.taken = 0
        self.arrivals: list[Any] = []
        self.burst = desk.handlers.bursts[0].take if compiled else None
        for topic in ("T1", "T2", "TBW102"):
            desk.broker.topics.ensure(topic, 4, 6)
        desk.broker.store.arrival_listeners.append(self.arrivals.append)
        desk.broker.store.watch_only(None)

    def contents(self) -> dict[str, bytes]:
        """All files of the store."""
        store = self.desk.broker.store
        store.commitlog.publish_position()
        return {
            path: file if isinstance(file, bytes) else file.buffer[:]
            for path, file in store.disk.files.items()
            if "/commitlog/" in path or "/consumequeue/" in path or "/index/" in path
        }

    def puts(self) -> dict[str, tuple[int, int, int, int]]:
        """What has been counted for each topic."""
        return {
            topic: (counter.calls, counter.messages, counter.size_bytes, counter.waits)
            for topic, counter in self.desk.broker.stats._puts.items()
        }

    async def receive(self, data: bytes) -> list[bytes]:
        """Handle what came; returns the answers."""
        answers: list[bytes] = []
        while data:
            if self.burst is not None:
                taken = self.burst(self.link, data)
                self.taken += taken
                answers += split(b"".join(self.link.unsent))
                self.link.unsent.clear()
                self.link.unsent_bytes = 0
                data = data[taken:]
                if taken and data:
                    continue
            size = 4 + int.from_bytes(data[:4], "big")
            if data and (answer := await self._one(data[:size])):
                answers.append(answer)
            data = data[size:]
        self.desk.broker.store.notify_arrivals()
        if self.desk.broker.config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            # What was not answered waits for the disk. Answers may come in any order.
            await trio.testing.wait_all_tasks_blocked()
            answers = sorted(answers + split(b"".join(self.link.sent)))
            self.link.sent.clear()
        return answers

    async def _one(self, frame: bytes) -> bytes:
        try:
            return await self.desk.frame(frame, self.link) or b""
        except Exception as error:  # noqa: BLE001 (the hub makes it an answer; here both ways must fail alike)
            return f"{type(error).__name__}: {error}".encode()


def split(data: bytes) -> list[bytes]:
    """The frames of some answers."""
    frames = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


def access_rules(*white: str) -> AccessRules:
    """Those of `ACCOUNTS`, and of white addresses."""
    accounts = [
        Account(
            key,
            secret,
            covers=matcher("*" if key == "comes from anywhere" else ""),
            admin=False,
            permissions=MOST if key == "may do most" else {},
            topic_default=Permission.DENY,
            group_default=Permission.DENY,
        )
        for key, secret in ACCOUNTS.items()
    ]
    return AccessRules({account.access_key: account for account in accounts}, [matcher(each) for each in white])


async def compare(
    seed: int, receives: int, new_desk: Callable[[], AbstractAsyncContextManager[Any]], *, signs: bool = False
) -> dict[str, int]:
    """Bring the same receives to two brokers; everything they answer, count and store must be equal.

    Returns:
        The bytes received, those of them that the compiled way has taken, and the answers.
    """
    twins = Twins(seed, signs=signs)
    async with new_desk() as first, new_desk() as second:
        ways = [Way(first, compiled=False), Way(second, compiled=True)]
        counts = {"bytes": 0, "taken_bytes": 0, "answers": 0}
        for number in range(receives):
            data = twins.receive()
            first.clock.now_ms += 1  # the clock of both
            answers = [await way.receive(data) for way in ways]
            assert answers[0] == answers[1], (seed, number)
            counts["bytes"] += len(data)
            counts["answers"] += len(answers[0])
        counts["taken_bytes"] = ways[1].taken
        assert ways[0].arrivals == ways[1].arrivals, seed
        assert ways[0].puts() == ways[1].puts(), seed
        assert first.broker.traffic.errors == second.broker.traffic.errors, seed
        assert ways[0].contents() == ways[1].contents(), seed
    return counts


def small_files(config: Any) -> Any:
    """A broker's configuration in which files become full soon."""
    return attrs.evolve(config, store=attrs.evolve(config.store, mapped_file_size_commit_log=1 << 18))


@click.command()
@click.option("--receives", default=10_000, show_default=True, help="How many receives.")
@click.option("--seed", default=0, show_default=True, help="The first seed; each makes 100 receives.")
def main(receives: int, seed: int) -> None:
    """Compare both ways of storing sends."""
    here = Path(__file__).resolve()
    sys.path.append(str(here.parents[3] / "memory"))
    spec = importlib.util.spec_from_file_location("broker_fixtures", here.parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    config = small_files(fixtures.config.__wrapped__())
    total = {"bytes": 0, "taken_bytes": 0, "answers": 0}
    for number in range(seed, seed + -(-receives // 100)):
        clock = fixtures.Clock()
        for name, count in trio.run(compare, number, 100, lambda: fixtures.open_desk(config, clock)).items():  # noqa: B023
            total[name] += count
        if not number % 100:
            click.echo(f"seed {number}: {total}")
    click.echo(f"equal: {total}")


if __name__ == "__main__":
    main()
