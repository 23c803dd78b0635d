"""Every request code by every kind of account: which requests a broker with access control allows.

What a request needs is written down here by hand, apart from the code that decides it. RocketMQ 4.9.7 is asked the same
in tests/interop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from triomq_protocol.acl import sign
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

TOPIC, GROUP = "access-topic", "access-group"
RETRY = f"%RETRY%{GROUP}"
HOST = "127.0.0.1"
UNKNOWN_CODE = 4711
OWN_CODES = (29_001, 29_002, 29_003, 29_004)

ACCOUNTS = f"""
accounts:
- {{accessKey: without-any, secretKey: without-secret}}
- {{accessKey: publisher, secretKey: publisher-secret, topicPerms: [{TOPIC}=PUB]}}
- {{accessKey: topic-reader, secretKey: topic-secret, topicPerms: [{TOPIC}=SUB]}}
- {{accessKey: group-reader, secretKey: group-secret, groupPerms: [{GROUP}=SUB]}}
- {{accessKey: subscriber, secretKey: subscriber-secret, topicPerms: [{TOPIC}=SUB], groupPerms: [{GROUP}=SUB]}}
- {{accessKey: by-default, secretKey: default-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
- {{accessKey: narrow-admin, secretKey: narrow-secret, admin: true, topicPerms: [other=PUB]}}
- {{accessKey: operator, secretKey: operator-secret, admin: true}}
- {{accessKey: neighbour, secretKey: neighbour-secret, whiteRemoteAddress: {HOST}}}
"""


@attrs.frozen
class Asker:
    """A kind of account.

    Attributes:
        name: what the tables call it.
        keys: what it signs with; None: it does not sign.
        has: what it may do.
        refused: the beginning of every refusal, whatever it asks; None if that depends on the request.
        is_checked: whether it is checked at all.
    """

    name: str
    keys: tuple[str, str] | None
    has: frozenset[str] = frozenset()
    refused: str | None = None
    is_checked: bool = True

    def is_allowed(self, needs: frozenset[str]) -> bool:
        """Whether a request with these needs is allowed."""
        return self.refused is None and (not self.is_checked or needs <= self.has)


PUB, SUB, GROUP_SUB, ADMIN = "`PUB` of the topic", "`SUB` of the topic", "`SUB` of the group", "an administrator"
_ALL = frozenset({PUB, SUB, GROUP_SUB})

ASKERS = (
    Asker("no signature", None, refused="No accessKey is configured"),
    Asker("an unknown account", ("stranger", "operator-secret"), refused="No acl config for stranger"),
    Asker("a wrong signature", ("operator", "wrong-secret"), refused="Check signature failed for accessKey=operator"),
    Asker("no permission", ("without-any", "without-secret")),
    Asker("`PUB` of the topic", ("publisher", "publisher-secret"), frozenset({PUB})),
    Asker("`SUB` of the topic", ("topic-reader", "topic-secret"), frozenset({SUB})),
    Asker("`SUB` of the group", ("group-reader", "group-secret"), frozenset({GROUP_SUB})),
    Asker("`SUB` of both", ("subscriber", "subscriber-secret"), frozenset({SUB, GROUP_SUB})),
    Asker("all by default", ("by-default", "default-secret"), _ALL),
    Asker("an administrator with permissions for other topics", ("narrow-admin", "narrow-secret"), frozenset({ADMIN})),
    Asker("an administrator", ("operator", "operator-secret"), _ALL | {ADMIN}),
    Asker("a white address", ("neighbour", "wrong-secret"), is_checked=False),
)


@attrs.frozen
class Case:
    """A request.

    Attributes:
        code: its code.
        about: what is special about it.
        fields, body: what it carries.
        needs: what the account needs.
        java_needs: the same in RocketMQ 4.9.7, which leaves more open.
    """

    code: int
    about: str
    fields: Mapping[str, str] = attrs.field(hash=False)
    body: bytes = b""
    needs: frozenset[str] = frozenset()
    java_needs: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Code, name and what is special."""
        known = {int(code): code.name for code in RequestCode} | {UNKNOWN_CODE: "an unknown code"}
        return f"{self.code} {known.get(self.code, 'of these brokers')}{self.about}"

    def command(self, by: Asker) -> Command:
        """The request, signed as the account does."""
        fields: dict[str, str | None] = {**self.fields}
        if by.keys is not None:
            fields = sign(fields, self.body, access_key=by.keys[0], secret_key=by.keys[1])
        command = Command.request(self.code, fields=fields, body=self.body)
        (received,) = FrameDecoder().feed(bytes(command.encode()))
        return received


FIELDS = {"topic": TOPIC, "consumerGroup": GROUP, "group": GROUP, "producerGroup": "PG", "queueId": "0", "a": "PG",
           "b": TOPIC, "clientID": "client", "commitOffset": "0"}  # fmt: skip
_HEARTBEAT = HeartbeatData(
    client_id="client",
    consumer_data_set=[
        ConsumerData(
            group_name=GROUP,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=TOPIC, sub_string="*", sub_version=5)],
        )
    ],
).encode()

_READ = frozenset({SUB, GROUP_SUB})
_NEEDS: Mapping[int, frozenset[str]] = {
    10: frozenset({PUB}), 310: frozenset({PUB}), 320: frozenset({PUB}), 324: frozenset({PUB}), 325: frozenset({PUB}),
    11: _READ, 361: _READ, 15: _READ, 34: _READ,
    12: frozenset({SUB}),
    35: frozenset({GROUP_SUB}), 36: frozenset({GROUP_SUB}), 38: frozenset({GROUP_SUB}),
    **dict.fromkeys((17, 18, 25, 200, 207, 215, 225), frozenset({ADMIN})),
    **dict.fromkeys((50, 51, 53, 54, *OWN_CODES), frozenset({ADMIN})),
}  # fmt: skip
NOT_IN_JAVA = frozenset({18, 225, 361, *OWN_CODES})
"""What a broker of 4.9.7 does not know, of the requests that need more than a signature."""
LEFT_TO_EVERY_ACCOUNT = frozenset({320, 324, 325, 50, 51, 53, 54})
"""What every account may send to a broker of 4.9.7."""


def cases(codes: frozenset[int] = frozenset()) -> Iterator[Case]:
    """A request of each known code, of the given ones and of an unknown one, and the special ones."""
    for code in sorted({*map(int, RequestCode), *OWN_CODES, UNKNOWN_CODE, *codes}):
        needs = _NEEDS.get(code, frozenset())
        java = frozenset() if code in LEFT_TO_EVERY_ACCOUNT | NOT_IN_JAVA else needs
        yield Case(code, "", FIELDS, _HEARTBEAT if code == RequestCode.HEART_BEAT else b"", needs, java)
    retry = {"topic": RETRY, "b": RETRY, "producerGroup": GROUP, "a": GROUP, "queueId": "0"}
    of_group = frozenset({GROUP_SUB})
    yield Case(10, ", to a retry topic", retry, needs=of_group)
    yield Case(310, ", to a retry topic", retry, needs=of_group, java_needs=of_group)
    yield Case(320, ", to a retry topic", retry, needs=of_group)
    yield Case(325, ", to a topic for replies", FIELDS | {"b": "DefaultCluster_REPLY_TOPIC"})
    yield Case(310, ", to `RMQ_SYS_TRACE_TOPIC`", FIELDS | {"b": "RMQ_SYS_TRACE_TOPIC"})
