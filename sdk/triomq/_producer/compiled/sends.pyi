from typing import Final

from triomq._producer.plain_sends import Joins as Joins
from triomq._producer.plain_sends import OpenBatch as OpenBatch
from triomq._producer.plain_sends import PlainSend as PlainSend
from triomq._producer.plain_sends import Window as Window
from triomq._producer.plain_sends import lone_frame as lone_frame

VERSION: Final[int]
