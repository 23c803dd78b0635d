"""The room of the Spark data source `rocketmq`; Spark looks a data source up by this package's name.

::

    rows = spark.read.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "orders").load()

Nothing of Spark is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_rocketmq.lag import LagListener as LagListener
    from pyspark_rocketmq.lag import SourceLag as SourceLag
    from pyspark_rocketmq.source import DefaultSource as DefaultSource

_ROOMS = {"DefaultSource": "source", "LagListener": "lag", "SourceLag": "lag"}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{room}"), name)
