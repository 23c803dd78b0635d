"""A dashboard of a cluster in the browser: ``triomq dashboard``.

It asks by the public administrative calls of `triomq`, as operators' commands do, so that it shows RocketMQ's own
clusters too. Nothing of the browser is trusted: names, keys and bodies of messages are escaped in every page.
"""

from triomq_dashboard.app import Dashboard, DashboardSettings

__all__ = ["Dashboard", "DashboardSettings"]
