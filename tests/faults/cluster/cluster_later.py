"""Messages whose delivery is the broker's own work: delayed ones, and those of transactions.

An acknowledged one is delivered, whatever happens to the master meanwhile; that of a transaction only if it is committed.
It is delivered once; each kill of a master, which may have stored the message and not yet its progress, may add once. So
may each start, to a transaction that a check has ended: only then the end comes that the producer sent by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
from cluster_audit import Files, read_log

from triomq import TransactionState

TOPIC = "later"


@attrs.define
class LaterLedger:
    """What was decided, and what was acknowledged.

    Attributes:
      states: the outcome of each transaction, by body; delayed messages have none.
      sent: the master's starts and kills when a message was sent, by body.
      safe: bodies of acknowledged messages, and whether a slave had them.
    """

    states: dict[bytes, TransactionState] = attrs.Factory(dict)
    sent: dict[bytes, tuple[int, int]] = attrs.Factory(dict)
    safe: dict[bytes, bool] = attrs.Factory(dict)

    def faults(self, delivered: Mapping[bytes, int], *, replicated: bool, kills: int, starts: int) -> list[str]:
        """Compare with what was delivered.

        Args:
            delivered: how often, by body.
            replicated: only messages that a slave had must have been delivered.
            kills: of masters, until now.
            starts: of masters, until now: a broker forgets then which copy of a half message replaced which.
        """
        faults = []
        for body, had_slave in self.safe.items():
            state = self.states.get(body, TransactionState.COMMIT)
            if state is TransactionState.COMMIT and (had_slave or not replicated) and not delivered.get(body):
                faults.append(f"lost: {body!r} was never delivered")
        for body, times in delivered.items():
            if self.states.get(body) is TransactionState.ROLLBACK:
                faults.append(f"changed: {body!r} was delivered, but rolled back")
            starts_before, kills_before = self.sent[body]
            if times > 1 + (starts - starts_before if body in self.states else kills - kills_before):
                faults.append(
                    f"duplicated: {body!r} was delivered {times} times, after {starts - starts_before} starts and "
                    f"{kills - kills_before} kills"
                )
        return faults


def delivered(files: Files, root: str) -> Counter[bytes]:
    """How often each message is in the topic."""
    return Counter(read_log(files, root, TOPIC).bodies.values())
