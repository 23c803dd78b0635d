"""The queue of a topic on a broker: a value used in many bodies."""

from triomq_protocol.java_text import java_hash
from triomq_protocol.wire.body import FrozenBody, QueueId


class MessageQueue(FrozenBody, frozen=True, kw_only=False, order=True):
    """One queue of one topic on one broker set; equal iff all three are equal. Usable as a map key.

    Called with topic, broker name, queue id, in this order. Upstream `MessageQueue`.
    """

    topic: str = ""
    broker_name: str = ""
    queue_id: QueueId = 0

    def hash_code(self) -> int:
        """Java's `hashCode`, signed 32 bits; it decides the order of queues in Java's maps and sets."""
        code = ((31 + java_hash(self.broker_name)) * 31 + self.queue_id) * 31 + java_hash(self.topic) & 0xFFFFFFFF
        return code - 0x100000000 if code > 0x7FFFFFFF else code

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
