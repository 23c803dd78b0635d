"""The broker: stores messages, serves pulls, keeps topics, groups and offsets, and registers itself at name servers.

`serve_broker` runs one. `handlers` maps request codes to functions; each function gets the `broker.Broker` object.
"""

from triomq_server.broker.addresses import BrokerAddresses as BrokerAddresses
from triomq_server.broker.lifecycle import serve_broker as serve_broker
