"""A trio client for Apache RocketMQ 4.9: send, pull, administer.

::

    async with triomq.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        result = await producer.send(triomq.Message("orders", b"one", tags="new", keys="order-1"))

The synchronous face for scripts and threads is :mod:`triomq.blocking`.
"""

# Sorted by purpose and by hand: this page is what users read first.
# ruff: noqa: I001

# First: what follows takes a while
from triomq import _quiet_start as _quiet_start

# A client, and what it hands out
from triomq._opening import open_client as open_client
from triomq._opening import open_producer as open_producer
from triomq._opening import open_push_consumer as open_push_consumer
from triomq._opening import open_pull_consumer as open_pull_consumer
from triomq._opening import open_lite_pull_consumer as open_lite_pull_consumer
from triomq._client import Client as Client
from triomq._client import ClientOptions as ClientOptions
from triomq._client_statistics import ClientStatistics as ClientStatistics
from triomq._client_statistics import LinkStatistics as LinkStatistics
from triomq._producer import Producer as Producer
from triomq._pull import PullConsumer as PullConsumer
from triomq._lite_pull import LitePullConsumer as LitePullConsumer
from triomq._push import PushConsumer as PushConsumer
from triomq._admin import Admin as Admin
from triomq._group_admin import GroupAdmin as GroupAdmin
from triomq._group_admin import ResetQueue as ResetQueue

# Messages, queues, results
from triomq._message import Message as Message
from triomq._message import MessageQueue as MessageQueue
from triomq._results import SendCallback as SendCallback
from triomq._results import SendResult as SendResult
from triomq._results import SendStatus as SendStatus
from triomq._pull_result import PullResult as PullResult
from triomq._pull_result import PullStatus as PullStatus
from triomq._received import ReceivedMessage as ReceivedMessage
from triomq._batches import split_batch as split_batch

# What is consumed, how much is held, and what handlers answer
from triomq._subscription import Sql as Sql
from triomq._subscription import ClassFilter as ClassFilter
from triomq._process_queue import FlowLimits as FlowLimits
from triomq._delivery import Delivery as Delivery
from triomq._delivery import Later as Later
from triomq._consumer_events import ConsumerEvent as ConsumerEvent

# Where the name servers are
from triomq._name_servers import NameServers as NameServers
from triomq._name_servers import NameServerProvider as NameServerProvider
from triomq._name_servers import StaticNameServers as StaticNameServers
from triomq._name_servers import CallableNameServers as CallableNameServers
from triomq._name_servers import DnsNameServers as DnsNameServers
from triomq._name_servers import HttpNameServers as HttpNameServers

# How connections are opened
from triomq._dialing import Dialer as Dialer
from triomq._dialing import QuickStream as QuickStream
from triomq._dialing import dial_tcp as dial_tcp
from triomq._dialing import tls_dialer as tls_dialer
from triomq._links import Backoff as Backoff

# Which queue, which broker, how often
from triomq._queues import QueueSelector as QueueSelector
from triomq._queues import SelectAtRandom as SelectAtRandom
from triomq._queues import SelectRoundRobin as SelectRoundRobin
from triomq._queues import select_by_hash as select_by_hash
from triomq._retry import RetryPolicy as RetryPolicy
from triomq._retry import Retries as Retries
from triomq._retry import FaultStrategy as FaultStrategy
from triomq._retry import LatencyFaults as LatencyFaults
from triomq._node_cache import ReadPreference as ReadPreference

# Who gets which queues of a group
from triomq._allocate import AllocateStrategy as AllocateStrategy
from triomq._allocate import Average as Average
from triomq._allocate import AverageByCircle as AverageByCircle
from triomq._allocate import ByConfig as ByConfig
from triomq._allocate import ConsistentHash as ConsistentHash
from triomq._allocate import MachineRoom as MachineRoom
from triomq._allocate import MachineRoomNearby as MachineRoomNearby
from triomq._allocate import Sticky as Sticky
from triomq._positions import IllegalOffset as IllegalOffset

# Bodies and offsets
from triomq._compression import Compressor as Compressor
from triomq._compression import ZlibCompressor as ZlibCompressor
from triomq._compression import Lz4Compressor as Lz4Compressor
from triomq._compression import ZstdCompressor as ZstdCompressor
from triomq._offsets import OffsetStore as OffsetStore
from triomq._offset_files import FileOffsets as FileOffsets

# Looking on
from triomq._hooks import SendContext as SendContext
from triomq._hooks import SendHook as SendHook
from triomq._hooks import PullContext as PullContext
from triomq._hooks import PullHook as PullHook
from triomq._hooks import ConsumeContext as ConsumeContext
from triomq._hooks import ConsumeHook as ConsumeHook

# Errors: the root and its branches; their particular classes are in triomq.errors
from triomq.errors import MQError as MQError
from triomq.errors import TransientError as TransientError
from triomq.errors import RouteError as RouteError
from triomq.errors import CallError as CallError
from triomq.errors import ClosedError as ClosedError

# Whole rooms
from triomq import blocking as blocking
from triomq import errors as errors
