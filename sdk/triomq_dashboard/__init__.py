"""A dashboard of a cluster in the browser: ``triomq dashboard``.

It uses the public administrative calls of `triomq`, as operators' commands do, so it also shows RocketMQ's own
clusters. Input from the browser is not trusted; names, keys and bodies of messages are escaped in every page.
"""

from triomq_dashboard.app import Dashboard, DashboardSettings

__all__ = ["Dashboard", "DashboardSettings"]
