"""The queue of a topic on a broker: the value that half of the bodies speak of."""

from triomq_protocol.body import FrozenBody


class MessageQueue(FrozenBody, frozen=True, kw_only=False, order=True):
    """One queue of one topic on one broker set; equal iff all three are equal. Usable as a map key.

    Called with topic, broker name, queue id, in this order. Upstream `MessageQueue`.
    """

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
