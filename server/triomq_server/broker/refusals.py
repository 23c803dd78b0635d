"""How a check ends a request: `RefusedError` carries the code and the remark that its answer will have."""

from __future__ import annotations

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""What 4.9 appends to many remarks (`FAQUrl`)."""


class RefusedError(Exception):
    """A request that will not be done; the handler that checks turns it into the answer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
