"""The broker: stores messages, serves pulls, keeps topics, groups and offsets, and registers them at name servers.

`serve_broker` runs one. `handlers` maps request codes to functions; each function gets the object of `broker.Broker`.
"""

from triomq_server.broker.addresses import BrokerAddresses as BrokerAddresses
from triomq_server.broker.lifecycle import serve_broker as serve_broker
