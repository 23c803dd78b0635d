"""How requests are refused: `RefusedError` carries the code and the remark of the answer, and remarks that several
handlers use."""

from __future__ import annotations

SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
"""How a slave refuses changes of its topics and groups, which are copies of its master's."""


class RefusedError(Exception):
    """A request is refused; its handler turns this into the answer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
