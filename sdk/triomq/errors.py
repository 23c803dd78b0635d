"""The errors of the client, sorted by what the caller can do about them.

There is one root, :class:`MQError`, with four branches: try again (:class:`TransientError`), ask for the route
again (:class:`RouteError`), change the call (:class:`CallError`), reopen the object
(:class:`ClosedError`).  :class:`NoNameServer` is in none of them.  Two class attributes, ``retriable`` and
``refresh_route``, control further attempts; after a broker's answer its code decides (``Retries.retry_codes``).
Response codes map to classes in one table (docs/protocol/remoting.md §8).
"""

# ruff: noqa: N818 - named after the state the caller is in, as in trio
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from triomq_protocol.codes import ResponseCode


class Attempt:
    """One attempt at one address, as listed in the error that ends a send.

    Args:
        address: ``host:port`` that was asked, or ``""`` if none could be chosen.
        error: the error that ended it.
        elapsed_s: how long it took, in seconds.
    """

    __slots__ = ("address", "elapsed_s", "error")

    def __init__(self, address: str, error: MQError, elapsed_s: float) -> None:
        self.address: str = address
        self.error: MQError = error
        self.elapsed_s: float = elapsed_s

    def __str__(self) -> str:
        return f"{self.address or 'no address'} after {self.elapsed_s * 1000:.0f} ms: {self.error.reason}"

    __repr__ = __str__


ACCESS_ADVICE: Final = (
    (
        re.compile("No accessKey is configured"),
        (
            "the request was not signed: give open_client(credentials=triomq.Credentials(access_key, secret_key)), or "
            "--credentials-file FILE to a command"
        ),
    ),
    (
        re.compile("No acl config for|No PlainAccessResource for"),
        "the broker does not know this access key: check the credentials, or add the account to its plain_acl.yml",
    ),
    (re.compile("Check signature failed"), "the secret key is not the one in the broker's plain_acl.yml"),
    (re.compile("Need admin permission"), "use an account with `admin: true` in the broker's plain_acl.yml"),
    (
        re.compile("No default permission for"),
        (
            "give the account the permission in the broker's plain_acl.yml: topicPerms for a topic, groupPerms for a "
            "group; PUB to send, SUB to consume"
        ),
    ),
)
"""Text in the remark of a refusal -> advice; the texts are those of RocketMQ 4.9."""

USER_ADVICE: Final = (
    (
        re.compile("username cannot be null"),
        (
            "the request was not signed: give open_client(credentials=triomq.Credentials(user, password)), or "
            "--credentials-file FILE to a command"
        ),
    ),
    (
        re.compile("User:.* is not found"),
        "the broker does not know this user: check the access key, which is the user's name, or create the user: mqadmin createUser",
    ),
    (re.compile("check signature failed"), "the secret key is not the user's password"),
    (
        re.compile("has no permission to access"),
        (
            "give the user this right: mqadmin createAcl -s User:NAME -r Topic:TOPIC, Group:GROUP or Cluster:CLUSTER, "
            "-a Pub to send, Sub to consume, Get for offsets and statistics, List, Create, Update or Delete to administrate, "
            "-d Allow"
        ),
    ),
)
"""The same for the users and rules of RocketMQ 5."""

ACCOUNTS_GONE: Final = (
    (
        re.compile("request type 5[0-4] not supported"),
        (
            "the broker has no accounts of plain_acl.yml; of RocketMQ 5 it has users and rules: mqadmin listUser, listAcl, "
            "createUser, createAcl"
        ),
    ),
)
"""The advice if a broker does not know requests 50 to 54, about accounts."""


TYPE_ADVICE: Final = (
    (
        re.compile("TopicMessageType validate failed, the expected type is UNSPECIFIED"),
        (
            "the RocketMQ 5 proxy does not know the topic: create it at the cluster's name servers, with `triomq topics "
            "TOPIC --create -n HOST:PORT`; a proxy that was asked before keeps its answer for 20 s or more"
        ),
    ),
    (
        re.compile("TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"),
        (
            "into a topic of type FIFO a RocketMQ 5 proxy takes only single messages with the property __SHARDINGKEY: "
            "properties={'__SHARDINGKEY': KEY}; selector=plugins.select_by_hash, arg=KEY sends those of a key to one queue"
        ),
    ),
    (
        re.compile("TopicMessageType validate failed"),
        (
            "a RocketMQ 5 proxy takes only messages of the topic's type: use a topic of this type (mqadmin updateTopic -a "
            "+message.type=DELAY, TRANSACTION or FIFO), use the cluster's name servers instead of the proxy, or set "
            "enableTopicMessageTypeCheck=false in the proxy's file"
        ),
    ),
)
"""The advice for messages that a RocketMQ 5 proxy refuses by the type of their topic."""

QUEUES_ADVICE: Final = (
    (
        re.compile("queues; at most"),
        "`triomq topics TOPIC --create --queues N` gives it fewer queues at each broker, and `--delete` deletes it",
    ),
)
"""The advice for a topic that brokers have registered with more queues than clients use."""

MESSAGE_ADVICE: Final = (
    *TYPE_ADVICE,
    (
        re.compile("timer message illegal"),
        (
            "TIMER_DELIVER_MS and TIMER_DELAY_MS are whole numbers of ms, TIMER_DELAY_SEC of seconds; the time is at most the "
            "broker's timerMaxDelaySec away, 3 days by default"
        ),
    ),
    (re.compile("Required message key is missing"), "the topic is compacted by key: give each message keys="),
    (
        re.compile("time of delivery needs a broker of "),
        "give delay_level= instead of TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS or __STARTDELIVERTIME",
    ),
)
"""The advice for messages that brokers refuse for other reasons than their size, with `TYPE_ADVICE`."""


class MQError(Exception):
    """The base class of all errors that this package raises on purpose.

    Args:
        what: what was asked for, in words, e.g. ``"send to topic orders"``.
        address: ``host:port`` of the peer that was asked; empty if none was.
        code: the peer's response code, if it answered.
        remark: the peer's own words, if it answered.
        attempts: every attempt made, oldest first.
    """

    retriable: ClassVar[bool] = False
    """Whether the same request may be retried, on another broker if there is one."""

    refresh_route: ClassVar[bool] = False
    """Whether the topic's route should be asked for again first."""

    advice: str = ""
    """What the caller can do."""

    _advice_by_remark: ClassVar[Sequence[tuple[re.Pattern[str], str]]] = ()
    """More specific advice for certain remarks of the peer; the first pattern found in the remark counts."""

    def __init__(
        self,
        what: str,
        *,
        address: str = "",
        code: int | None = None,
        remark: str | None = None,
        attempts: Sequence[Attempt] = (),
    ) -> None:
        super().__init__(what)
        self.what: str = what
        self.address: str = address
        self.code: int | None = code
        self.remark: str | None = remark
        self.attempts: tuple[Attempt, ...] = tuple(attempts)
        for pattern, advice in self._advice_by_remark:
            if pattern.search(remark or ""):
                self.advice = advice
                break

    @property
    def reason(self) -> str:
        """The failure in one line, without the advice and without the list of attempts."""
        parts = [f"{type(self).__name__}: {self.what}"]
        if self.address:
            parts.append(f"asked {self.address}")
        if self.code is not None:
            parts.append(f"answered {code_name(self.code)}" if self.address else code_name(self.code))
        if self.remark:
            parts.append(self.remark.split("\nSee http://rocketmq")[0].strip())
        return "; ".join(parts)

    def __str__(self) -> str:
        lines = [self.reason.removeprefix(f"{type(self).__name__}: ")]
        if self.advice:
            lines[0] += f" ({self.advice})"
        lines += [f"  attempt {number}: {attempt}" for number, attempt in enumerate(self.attempts, 1)]
        return "\n".join(lines)


MAY_BE_STORED = "the outcome is unknown; a retry may duplicate, compare UNIQ_KEY"
"""The advice for a send with an attempt that was written and not answered."""


class TransientError(MQError):
    """The request may succeed at another broker, or later."""

    retriable = True
    advice = "try again; another broker may succeed, or the same one later"


class ConnectFailed(TransientError):
    """No connection to the address could be opened; nothing was sent."""

    refresh_route = True  # another broker may have become the master meanwhile
    advice = "nothing was sent; check that the address is right and its process runs"


class LinkLost(TransientError):
    """The connection ended before the answer arrived; whether the request was carried out is unknown."""

    advice = "try again; check that the address is right and its process runs"


class RequestTimeout(TransientError):
    """No answer within the time allowed; whether the request was carried out is unknown."""

    advice = "try again, or allow more time; check that the address is right and its process answers"


class ReplyTimeout(RequestTimeout):
    """A request was sent, and no reply arrived in time; whether it was handled is unknown."""

    retriable = False
    advice = (
        "check that a consumer of the topic runs, and replies in time (`triomq groups` shows consumers and lag), or allow "
        "more time; asking again may have it handled twice"
    )


class NotReady(RequestTimeout):
    """No route, or no connection with capacity, was found in time; the attempt had sent nothing."""

    advice = "the last attempt sent nothing; check that the address answers"


class BrokerFault(TransientError):
    """The broker could not carry out the request (code 1)."""

    advice = "read the remark; another broker may do"

    # A DLedger group that does not get enough confirmations in time responds so, and may store the message later; a
    # plain broker responds so before it stores anything.
    _advice_by_remark: ClassVar[Sequence[tuple[re.Pattern[str], str]]] = (
        (re.compile(r"\[PC_SYNCHRONIZED\]"), MAY_BE_STORED),
    )


class FilterSwitchedOff(BrokerFault):
    """The broker is not configured to evaluate SQL92 expressions (code 1)."""

    retriable = False
    advice = (
        "set enablePropertyFilter=true in the configuration of the topic's brokers, "
        "e.g. `triomq broker --set enablePropertyFilter=true`"
    )


class QueueIllegal(BrokerFault):
    """The broker has no queue of this number in the topic (code 1); the route may be out of date."""

    advice = "`triomq topics TOPIC` lists the topic's queues"


class AccessRefused(BrokerFault):
    """The broker checks access, and refuses the account, or the account lacks a permission (code 1 with ``AclException``).

    The remark names the topic or group and, from brokers of this project, the missing permission.
    """

    retriable = False
    advice = "check the account in the broker's plain_acl.yml, and open_client(credentials=...)"

    _advice_by_remark = ACCESS_ADVICE


class AskerGone(BrokerFault):
    """A reply could not be delivered: the client that asked is not connected to the broker, or did not take it (code 1)."""

    advice = "it has closed, or is connected to another broker; if it still waits, its request ends with ReplyTimeout"


class BrokerUnavailable(TransientError):
    """The broker does not accept this request in its present state (code 14): a slave, stopping, or out of disk."""

    refresh_route = True  # it may have become a slave
    advice = "use a master that accepts writes, wait, or free space on its disk: its log says why it refuses"


class BrokerBusy(TransientError):
    """The broker sheds load (codes 2 and 215).

    It is not retried by default, as in upstream's producer: retries make an overload worse.
    ``Retries(retry_codes=...)`` from :mod:`triomq.plugins` changes that.
    """

    retriable = False
    advice = "slow down, then try again"


class RequestRejected(BrokerBusy):
    """The broker rejected the request before it looked at it (code 2 with ``[REJECTREQUEST]``); nothing was done.

    Slaves reject so: sends, if they are of RocketMQ 5, and pulls, unless they serve reads. Masters do while their
    memory for new messages is busy. So the route is asked for again, and a send is repeated with pauses, as after
    :class:`BrokerUnavailable`.
    """

    refresh_route = True  # it may have become a slave
    advice = (
        "nothing was done; the broker is a slave, which takes no messages, and serves pulls only with slaveReadEnable=true, "
        "or a busy master: check with `triomq cluster-status` that the set has a master, or slow down"
    )


class Overloaded(TransientError):
    """This client has too much in flight; nothing was sent."""

    retriable = False
    advice = "wait for earlier requests to finish, or raise the limit"


class TransactionRolledBack(TransientError):
    """The half message was not stored as safely as its broker is configured to store messages; it was rolled back, and
    the local transaction was not started."""

    retriable = False
    advice = "nothing is delivered; check the broker's disk and slaves, then try again"


class RouteError(MQError):
    """No known broker serves this topic in the way asked for; the route may be out of date."""

    retriable = True
    refresh_route = True
    advice = "check the topic's name, rights and brokers"


class RouteNotFound(RouteError):
    """The name server has no route for the topic, and the default topic provided none either."""

    retriable = False
    advice = (
        "`triomq topics` lists topics, `triomq topics TOPIC --create` creates one; "
        "a broker with autoCreateTopicEnable creates it when the first message is sent"
    )


class BrokerNotFound(RouteNotFound):
    """The topic is known, or may be, but no registered broker could serve the request: an outage.

    Calls wait for such a broker until their deadline; see ``route_wait_s`` of :func:`triomq.open_client`.
    """

    advice = (
        "`triomq cluster-status` lists the brokers that are registered; start the missing one, or restart one that hangs; "
        "`route_wait_s` of open_client is how long calls wait for one"
    )


class TopicNotFound(RouteError):
    """The broker does not hold the topic (code 17)."""

    advice = "create the topic (`triomq topics TOPIC --create`), or refresh the route"


class PermissionDenied(RouteError):
    """The topic, the group or the broker forbids the request (code 16)."""

    advice = "check the rights of topic, group and broker"

    _advice_by_remark = USER_ADVICE


class WrongUnit(RouteError):
    """The broker's unit does not serve this client (codes 204 and 205)."""


class NoNameServer(MQError):
    """No name server is known or none could be reached."""

    advice = "check the name servers' addresses; `triomq namesrv` or `triomq cluster` starts one"


class NotANameServer(NoNameServer):
    """The server at a name server's address is something else: a broker, a web server, a port that expects TLS.

    It is raised at once; calls do not wait for such an address to become a name server.
    """

    advice = (
        "check the name servers' addresses, and whether they expect TLS; name servers listen on port 9876 unless "
        "configured otherwise"
    )


class CallError(MQError):
    """The request itself cannot be accepted; the same one would fail again. The text states the cause."""


class InvalidCall(CallError):
    """An argument is out of its range; found before anything was sent."""


class MessageIllegal(CallError):
    """The message breaks a rule of size, name or property (code 13 from a broker)."""

    advice = "a body has 1 byte to 4 MiB, all properties together at most 32767 bytes"

    _advice_by_remark = MESSAGE_ADVICE


class UnsupportedRequest(CallError):
    """The peer does not know this request (codes 3 and 15)."""

    advice = (
        "the peer is too old or of another kind; a RocketMQ 5 proxy takes only requests of producers and consumers, and no "
        "replies: give the cluster's name servers instead"
    )

    _advice_by_remark = ACCOUNTS_GONE


class SubscriptionRefused(CallError):
    """The filter expression or subscription cannot be used (codes 23-25, 27, 28)."""

    advice = "check the filter expression and the group's subscription"


class GroupNotFound(CallError):
    """The consumer group does not exist, and the broker does not create it (code 26)."""

    advice = "create the subscription group, or allow autoCreateSubscriptionGroup"


class NotFound(CallError):
    """The requested object does not exist (codes 22, 206 and 208)."""

    advice = "nothing is stored under it"


class OffsetIllegal(CallError):
    """The broker does not have the offset that was pulled from, and the consumer's policy is to raise."""

    advice = "seek to an offset inside the queue's range, or choose another illegal_offset policy"


class BrokerRefused(CallError):
    """The broker refused the request with a response code that has no class of its own."""

    advice = "read the remark"


class StaticTopicRefused(BrokerRefused):
    """The broker does not have this queue of a static topic of RocketMQ 5 (code 501)."""

    advice = (
        "clients of the 4.9 protocol do not find the queues of a static topic: use a client of RocketMQ 5 for it, or a topic "
        "that is not static"
    )


class ClosedError(MQError):
    """The client, the producer, the consumer or the connection is closed."""

    advice = "open it again"


class ClientClosed(ClosedError):
    """The client or producer is closed or closing; an unanswered send may or may not have been stored."""


class ProtocolViolation(ClosedError):
    """The peer sent bytes that are not of the protocol, or an answer that cannot be used; bytes that are not frames have
    closed the connection."""

    advice = "check that the address is a name server or broker"
    _advice_by_remark = QUEUES_ADVICE


class AnswerTooLong(ProtocolViolation):
    """The answer is longer than the client decodes: decoding it would take seconds and much memory."""

    advice = "ask for less at once: for one group or one topic, not for all of them"


class OtherProtocol(ProtocolViolation):
    """The first bytes from the peer are of another protocol: it is not a name server or broker, or it expects TLS."""


NOT_LEADER_FOR_QUEUE: Final = 501
"""Of RocketMQ 5."""

CODE_ERRORS: dict[int, type[MQError]] = {
    ResponseCode.SYSTEM_ERROR: BrokerFault,
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: UnsupportedRequest,
    ResponseCode.MESSAGE_ILLEGAL: MessageIllegal,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerUnavailable,
    ResponseCode.VERSION_NOT_SUPPORTED: UnsupportedRequest,
    ResponseCode.NO_PERMISSION: PermissionDenied,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionRefused,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionRefused,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionRefused,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionRefused,
    ResponseCode.FILTER_DATA_NOT_LATEST: SubscriptionRefused,
    ResponseCode.NO_BUYER_ID: WrongUnit,
    ResponseCode.NOT_IN_CURRENT_UNIT: WrongUnit,
    ResponseCode.CONSUMER_NOT_ONLINE: NotFound,
    ResponseCode.NO_MESSAGE: NotFound,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    NOT_LEADER_FOR_QUEUE: StaticTopicRefused,
}
"""Response code -> error class; a code that is not here becomes :class:`BrokerRefused`."""


FAULTS_BY_REMARK: tuple[tuple[re.Pattern[str], type[BrokerFault]], ...] = (
    (re.compile(r"\bAclException\b"), AccessRefused),
    (re.compile("does not support consumer to filter message by"), FilterSwitchedOff),
    (re.compile(r"queueId\[-?\d+\] is illegal"), QueueIllegal),
    (re.compile(r"push reply message (fail, channel of|to .*fail)"), AskerGone),
)
"""Text in a remark of code 1 -> error class; the texts are RocketMQ 4.9's."""


REJECTED: Final = "[REJECTREQUEST]"
"""In the remark of code 2, if the broker did not look at the request; other remarks come from its queues and locks."""


def code_name(code: int) -> str:
    """The code as ``"NAME (number)"``, or the bare number if it has no name."""
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return str(code)


REMARK_CHARS_MAX: Final = 4096
"""The most characters of a peer's remark that an error keeps."""


def error_for_code(code: int, remark: str | None, *, what: str, address: str) -> MQError:
    """The error for a peer's answer.

    Args:
        code: response code, not 0.
        remark: the answer's remark.
        what: what was asked for, in words.
        address: the server that answered.
    """
    kind = CODE_ERRORS.get(code, BrokerRefused)
    if kind is BrokerFault:
        kind = _fault_for(remark or "")
    elif kind is BrokerBusy and REJECTED in (remark or ""):
        kind = RequestRejected
    if remark is not None and len(remark) > REMARK_CHARS_MAX:
        remark = f"{remark[:REMARK_CHARS_MAX]}... ({len(remark)} characters)"
    return kind(what, address=address, code=code, remark=remark)


def _fault_for(remark: str) -> type[BrokerFault]:
    """The error class for a remark of code 1.

    Code 1 has many causes; only the remark shows those that no other attempt and no other broker can change.
    """
    for pattern, kind in FAULTS_BY_REMARK:
        if pattern.search(remark):
            return kind
    return BrokerFault
