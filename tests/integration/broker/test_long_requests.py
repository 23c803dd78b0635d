"""No single request keeps a broker from serving others: asked in bytes, by another connection."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path

from raw_broker import LIMIT_S, ask, frame, header, started_broker

GET_RUNTIME_INFO = 28

LONGEST_S = 4.0
"""A request takes milliseconds; one that held the loop took 13 s for this header."""


def colliding(size_bytes: int) -> bytes:
    """A header whose field names are integers of one hash: a dict of them takes time by the square of their number."""
    modulus = 2**61 - 1
    names = bytearray()
    number = 1
    while len(names) < size_bytes:
        names += b'%d:"",' % (number * modulus)
        number += 1
    return b'{"code":28,"language":"JAVA","version":399,"opaque":1,"flag":0,"extFields":{' + names[:-1] + b"}}"


def test_keys_that_collide_delay_no_other_request(tmp_path: Path) -> None:
    longest_s = 0.0
    with started_broker(tmp_path / "store") as port, socket.create_connection(("127.0.0.1", port), LIMIT_S) as link:
        link.sendall(frame(colliding(800_000)))
        ended = False
        while not ended:
            # An answer, or the end of the connection: from then on nothing is left to be done for it.
            ended = bool(select.select([link], [], [], 0)[0])
            started = time.monotonic()
            assert ask(port, frame(header(GET_RUNTIME_INFO)))[0]["code"] == 0
            longest_s = max(longest_s, time.monotonic() - started)
    assert longest_s < LONGEST_S
