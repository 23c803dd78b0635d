"""A trio client for Apache RocketMQ 4.9: send, pull, administer.

::

    async with triomq.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        result = await producer.send(triomq.Message("orders", b"one", tags="new", keys="order-1"))

The synchronous face for scripts and threads is :mod:`triomq.blocking`.
"""

# What a user may touch, sorted by purpose.
# Administration
from triomq._admin import Admin as Admin

# Sending
from triomq._batches import split_batch as split_batch
from triomq._client import Client as Client
from triomq._client import ClientOptions as ClientOptions
from triomq._client import open_client as open_client
from triomq._client import open_producer as open_producer
from triomq._client import open_pull_consumer as open_pull_consumer

# Plug points and their default implementations
from triomq._compression import Compressor as Compressor
from triomq._compression import Lz4Compressor as Lz4Compressor
from triomq._compression import ZlibCompressor as ZlibCompressor
from triomq._compression import ZstdCompressor as ZstdCompressor
from triomq._dialing import Dialer as Dialer
from triomq._dialing import QuickStream as QuickStream
from triomq._dialing import dial_tcp as dial_tcp
from triomq._dialing import tls_dialer as tls_dialer
from triomq._hooks import PullContext as PullContext
from triomq._hooks import PullHook as PullHook
from triomq._hooks import SendContext as SendContext
from triomq._hooks import SendHook as SendHook
from triomq._links import Backoff as Backoff

# Messages and queues
from triomq._message import Message as Message
from triomq._message import MessageQueue as MessageQueue
from triomq._name_servers import CallableNameServers as CallableNameServers
from triomq._name_servers import DnsNameServers as DnsNameServers
from triomq._name_servers import HttpNameServers as HttpNameServers
from triomq._name_servers import NameServerProvider as NameServerProvider
from triomq._name_servers import NameServers as NameServers
from triomq._name_servers import StaticNameServers as StaticNameServers
from triomq._node_cache import ReadPreference as ReadPreference
from triomq._offsets import FileOffsets as FileOffsets
from triomq._offsets import OffsetStore as OffsetStore
from triomq._producer import Producer as Producer

# Pulling
from triomq._pull import PullConsumer as PullConsumer
from triomq._pull_result import PullResult as PullResult
from triomq._pull_result import PullStatus as PullStatus
from triomq._queues import QueueSelector as QueueSelector
from triomq._queues import SelectAtRandom as SelectAtRandom
from triomq._queues import SelectRoundRobin as SelectRoundRobin
from triomq._queues import select_by_hash as select_by_hash
from triomq._received import ReceivedMessage as ReceivedMessage
from triomq._results import SendCallback as SendCallback
from triomq._results import SendResult as SendResult
from triomq._results import SendStatus as SendStatus
from triomq._retry import FaultStrategy as FaultStrategy
from triomq._retry import LatencyFaults as LatencyFaults
from triomq._retry import Retries as Retries
from triomq._retry import RetryPolicy as RetryPolicy

# Errors; the more particular ones are in triomq.errors
from triomq.errors import CallError as CallError
from triomq.errors import ClosedError as ClosedError
from triomq.errors import MQError as MQError
from triomq.errors import RouteError as RouteError
from triomq.errors import TransientError as TransientError
