"""The broker: takes messages, serves pulls, keeps topics, groups and offsets, and tells name servers about them.

`serve_broker` runs one. Request codes are mapped to functions in `handlers`; each function gets the `Broker` of `service`.
"""

from .addresses import BrokerAddresses as BrokerAddresses
from .lifecycle import serve_broker as serve_broker
