"""RocketMQ for tests: pytest fixtures, a cluster whose clock and faults the test controls, and `triomq run`.

The fixtures are in `plugin`, which pytest finds automatically. `Servers` does the same without pytest.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triomq_testing.clusters.servers import Servers
    from triomq_testing.rocketmq import RocketMQ
    from triomq_testing.steered.clock import Clock
    from triomq_testing.steered.faults import Faults

__all__ = ["Clock", "Faults", "RocketMQ", "Servers"]

_HOMES = {"Clock": "steered.clock", "Faults": "steered.faults", "RocketMQ": "rocketmq", "Servers": "clusters.servers"}


if not TYPE_CHECKING:  # a declaration that every name exists

    def __getattr__(name: str) -> object:
        """Import a name on first use: every run of pytest imports this package."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"triomq_testing.{_HOMES[name]}"), name)
