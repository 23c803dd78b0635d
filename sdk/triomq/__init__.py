"""A trio client for Apache RocketMQ 4.9: send, pull, consume, administer.

::

    async with triomq.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        result = await producer.send(triomq.Message("orders", b"one", tags="new", keys="order-1"))

:mod:`triomq.aio` is the same client for asyncio, :mod:`triomq.blocking` without ``await``.  :mod:`triomq.errors` has the
error classes, :mod:`triomq.plugins` the plug points, :mod:`triomq.admin` the classes of administration, and
:mod:`triomq.statistics` those of a client's counters.
"""

# Sorted by purpose and by hand: this page is what users read first.
# ruff: noqa: I001, RUF022
import importlib as _importlib
import sys as _sys
import typing as _typing

if _typing.TYPE_CHECKING:
    from triomq import aio

# A client, and the objects that it creates
from triomq._client.opening import (
    open_client,
    open_producer,
    open_push_consumer,
    open_pull_consumer,
    open_lite_pull_consumer,
)
from triomq._client.client import Client
from triomq._client.options import ClientOptions
from triomq._transport.credentials import Credentials
from triomq._transport.links import Backoff
from triomq._producer.producer import Producer
from triomq._consumer.pull_consumer import PullConsumer
from triomq._consumer.shared_pulls import SharedPulls
from triomq._consumer.push.push_consumer import PushConsumer
from triomq._consumer.lite.lite_pull_consumer import LitePullConsumer

# Messages, queues, results
from triomq._message.message import Message, MessageQueue
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendCallback, SendFunction, SendResult, SendStatus
from triomq._message.pull_result import PullResult, PullStatus
from triomq._producer.batches import split_batch
from triomq._message.transaction import (
    TransactionState,
    Transaction,
    TransactionResult,
    HalfMessage,
    TransactionListener,
    TransactionCheck,
    LocalTransaction,
)

# What is consumed, from where, how much is held, and the results of handlers
from triomq._message.subscription import Sql
from triomq._cluster.replica_choice import ReadPreference
from triomq._consumer.group.positions import IllegalOffset, StartFrom
from triomq._consumer.group.process_queue import FlowLimits
from triomq._consumer.push.options import ConsumeRetries, PullOptions
from triomq._consumer.push.delivery import Delivery
from triomq._consumer.push.dispatch import Commit, Later, Rollback
from triomq._consumer.group.callbacks import ConsumerCallbacks, ConsumerEvent

# Where a queue begins and ends, client.bounds
from triomq._cluster.queue_bounds import QueueBounds

# Errors: the root and its branches; the specific classes are in triomq.errors
from triomq.errors import MQError, TransientError, RouteError, CallError, ClosedError

# Whole modules
from triomq import admin, blocking, errors, plugins, statistics

__version__ = "0.1.0"

__all__ = [
    "open_client",
    "open_producer",
    "open_push_consumer",
    "open_pull_consumer",
    "open_lite_pull_consumer",
    "Client",
    "ClientOptions",
    "Credentials",
    "Backoff",
    "Producer",
    "PullConsumer",
    "SharedPulls",
    "PushConsumer",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "ReceivedMessage",
    "SendCallback",
    "SendFunction",
    "SendResult",
    "SendStatus",
    "PullResult",
    "PullStatus",
    "split_batch",
    "TransactionState",
    "Transaction",
    "TransactionResult",
    "HalfMessage",
    "TransactionListener",
    "TransactionCheck",
    "LocalTransaction",
    "Sql",
    "ReadPreference",
    "IllegalOffset",
    "StartFrom",
    "FlowLimits",
    "ConsumeRetries",
    "PullOptions",
    "Delivery",
    "Later",
    "Commit",
    "Rollback",
    "ConsumerCallbacks",
    "ConsumerEvent",
    "QueueBounds",
    "MQError",
    "TransientError",
    "RouteError",
    "CallError",
    "ClosedError",
    "admin",
    "aio",
    "blocking",
    "errors",
    "plugins",
    "statistics",
    "__version__",
]


# For a type checker it would be a declaration that every name exists.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import :mod:`triomq.aio` on first use: importing asyncio takes a tenth of the whole import time."""
        if name == "aio":
            return _importlib.import_module("triomq.aio")
        modules = [admin, errors, plugins, statistics]
        homes = [each for each in modules if getattr(vars(each).get(name), "__module__", "").startswith("triomq")]
        what = f"module {__name__!r} has no attribute {name!r}" + "".join(
            f"; it is {home.__name__}.{name}" for home in homes
        )
        # Python replaces an AttributeError by "cannot import name ..." without its text.
        if homes and _sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":  # noqa: SLF001
            raise ImportError(what, name=name)
        raise AttributeError(what, name=name)
