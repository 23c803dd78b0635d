"""The transport ``rocketmq://`` for Kombu, and so for Celery.

::

    import triomq_adapters.kombu  # registers the transport

    app = celery.Celery("jobs", broker="rocketmq://127.0.0.1:9876/")

A queue is a topic that its consumers share as one group. A message that was taken and not acknowledged is given to
another consumer when its own has ended. Tasks with an ETA wait at the broker.

Transport options:

``name_servers``
    Several name servers, ``"a:9876;b:9876"``, in place of the one in the URL.
``topic_prefix``
    The prefix of the names of all topics and groups; default: none.
``queues``
    Queues per broker of a topic that is created; each queue is read by one worker at a time. Default: 16.
``commit_interval``
    How often a worker commits its acknowledgements, in seconds; default: 1. If it is killed, other workers repeat the
    messages acknowledged since the last commit.
``visibility_timeout``
    A message that is not acknowledged within this time, in seconds, is delivered again; default: 3600.
``max_retries``
    How often this may happen before the message becomes a dead letter; default: 16.
``send_timeout``
    How many seconds a send may take; default: 10.
``polling_interval``
    How many seconds a loop sleeps if there is no message; default: 0.02.
``client_options``
    Further arguments of :func:`triomq.open_client`.
"""

from kombu.transport import TRANSPORT_ALIASES

from triomq_adapters.kombu.channel import Channel
from triomq_adapters.kombu.transport import Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES.setdefault("rocketmq", "triomq_adapters.kombu:Transport")
