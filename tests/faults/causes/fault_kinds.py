"""The kinds of faults that are planted, and the result that each must get: pure values."""

from __future__ import annotations

import re

import attrs

from triomq_benchmarks.figures.run_result import Decision, RunStatus


@attrs.frozen
class Kind:
    """One kind.

    Attributes:
        name: what is done.
        status: that the run must get.
        says: a pattern that explanation or notes must contain: the cause.
        others: statuses that are right as well, if the run names the cause.
    """

    name: str
    status: RunStatus
    says: str
    others: tuple[RunStatus, ...] = ()

    def is_named(self, decision: Decision) -> bool:
        """Whether a result names this cause, and no other."""
        text = "\n".join((decision.explanation, *decision.notes))
        blamed = "the load generator was too slow" in decision.explanation
        return (
            decision.status in (self.status, *self.others)
            and re.search(self.says, text) is not None
            and blamed is (self.status is RunStatus.GENERATOR_LATE)
        )


_AUDIT, _ENDED, _MISSED = RunStatus.AUDIT_FAILED, RunStatus.NODE_ENDED, RunStatus.THRESHOLD_FAILED

KINDS = (
    # What no consumer had got when the broker was killed is lost to the audit, which says after what.
    Kind(
        "kill -9 of the broker",
        _ENDED,
        r"the process of broker-a ended at|lost, after the end of the process of broker-a at",
        others=(_AUDIT,),
    ),
    Kind("kill -9 of the slave", _ENDED, r"the process of broker-a-s ended at"),
    Kind("kill -9 of the name server", _ENDED, r"the process of namesrv-\d ended at"),
    Kind(
        "the workload's own kill",
        RunStatus.ERRORS,
        r"(sends failed .*|lost), after kill master \(broker-a\) at",
        others=(_AUDIT,),
    ),
    Kind("the workload's own pause", _MISSED, r"p99_ms < 500 .*, after pause master \(broker-a\) at"),
    Kind("SIGSTOP of the broker", _MISSED, r"p99_ms < 500 .*, after a stop of the process of broker-a at"),
    Kind("SIGSTOP of the name server", RunStatus.PASSED, r"the process of namesrv-\d was stopped \(SIGSTOP\) from"),
    Kind("SIGSTOP of the slave", RunStatus.PASSED, r"the process of broker-a-s was stopped \(SIGSTOP\) from"),
    # Whether sends fail by a cut, or are late, or neither, depends on how fast links come back.
    Kind("cut links", _MISSED, r", after cut master \(broker-a\) at", others=(RunStatus.PASSED, RunStatus.ERRORS)),
    Kind("full disk", RunStatus.ERRORS, r"sends failed .*(?i:disk)"),
    Kind("slow flush", _MISSED, r"not reached: p99_ms < 500 \(measured \d+"),
    Kind("refused topic", RunStatus.ERRORS, r"sends failed .*(?i:topic)"),
    Kind("wrong permissions", RunStatus.ERRORS, r"sends failed .*(?i:permission|forbid|sending|rights)"),
    Kind("generator starved of CPU", RunStatus.GENERATOR_LATE, r"the load generator was too slow, not the broker"),
    Kind("generator killed", RunStatus.INCOMPLETE, r"worker \d: was killed by SIGKILL"),
    Kind("run interrupted", RunStatus.INCOMPLETE, r"the run was interrupted"),
    Kind("messages lost", _AUDIT, r"the audit found: \d+ lost"),
    Kind("bodies altered", _AUDIT, r"the audit found: \d+ corrupt"),
    Kind("messages delivered twice", _AUDIT, r"the audit found: \d+ duplicated"),
    Kind("messages out of order", _AUDIT, r"the audit found: \d+ reordered"),
    Kind("messages of another run", _AUDIT, r"the audit found: \d+ unexpected(?!; \d+ places)"),
    Kind("log went back", _AUDIT, r"\d+ places acknowledged for two messages: the log went back"),
)
BY_NAME = {kind.name: kind for kind in KINDS}
LEDGER_KINDS = tuple(kind.name for kind in KINDS if kind.status is _AUDIT)
