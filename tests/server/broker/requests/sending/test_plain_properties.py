"""Property strings that differ in their unique key alone: stored as the thorough way would have stored each."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.properties import broker_properties, decode_properties
from triomq_protocol.record.view import iter_records
from triomq_server.broker.requests.sending.plain_properties import MARK, PlainProperties

ID = "7F00000100002A9F7F00000100002A9%d"


@pytest.mark.parametrize(
    "sent",
    [
        f"UNIQ_KEY\x01{ID}\x02WAIT\x01true\x02TAGS\x01t",
        f"TAGS\x01t\x02WAIT\x01false\x02UNIQ_KEY\x01{ID}",
        f"A\x01b\x02UNIQ_KEY\x01{ID}\x02",
        f"CLUSTER\x01x\x02UNIQ_KEY\x01{ID}",
        f"\x02\x02UNIQ_KEY\x01{ID}\x02\x02B\x01\x02C",
        f"XUNIQ_KEY\x01{ID}\x02TAGS\x01t",
        f"UNIQ_KEY\x01{ID}5",
        f"UNIQ_KEY\x01{ID}\x02UNIQ_KEY\x01{ID}",
        f"KEYS\x01k\x02UNIQ_KEY\x01{ID}",
        f"UNIQ_KEY{ID}\x01x",
        f"é\x01ü\x02UNIQ_KEY\x01{ID}",
        "UNIQ_KEY\x01short%d",
        "TAGS\x01t%d",
    ],
)
async def test_repeated_shapes(open_broker: Any, sent: str) -> None:
    texts = [sent.replace("%d", number) for number in ("1", "2", "3", "3", "\x02")]
    async with open_broker() as broker:
        peer = await broker.peer()
        for text in texts:
            assert (await peer.put(properties=text)).code == 0
        answer = await peer.pull("T1", 0)
    stored = [record.properties_text for record in iter_records(answer.body)]
    assert stored == [broker_properties(text, "C1") for text in texts]


@pytest.mark.parametrize(
    "text", [f"UNIQ_KEY\x01{'.' * 32}", f"UNIQ_KEY\x01{'é' * 32}", f"KEYS\x01k\x02UNIQ_KEY\x01{'A' * 32}"]
)
def test_properties_without_a_shape(text: str) -> None:
    plain = PlainProperties("C")
    plain.learn(text, decode_properties(text))
    assert not plain.shapes


def test_many_shapes_are_not_kept() -> None:
    plain = PlainProperties("C")
    for number in range(5000):
        text = f"TAGS\x01t{number}\x02{MARK}{'A' * 32}"
        plain.learn(text, decode_properties(text))
    assert 0 < len(plain.shapes) <= 1024
