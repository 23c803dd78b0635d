"""The Spark data source `rocketmq`; Spark looks a data source up by this package's name.

::

    rows = spark.read.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "orders").load()

Spark is not imported before one of the names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_rocketmq.read.lag import LagListener as LagListener
    from pyspark_rocketmq.read.lag import SourceLag as SourceLag
    from pyspark_rocketmq.source import DefaultSource as DefaultSource

_MODULES = {"DefaultSource": "source", "LagListener": "read.lag", "SourceLag": "read.lag"}


if not TYPE_CHECKING:  # a declaration that every name exists

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{module}"), name)
