"""Metrics of servers: histograms, the text that Prometheus reads, and the port where it is read.

Counters are in the modules that do the work. The metrics of brokers and name servers are in
`triomq_server.broker.metrics` and `triomq_server.namesrv.metrics`. RocketMQ 4.9 has no such port.
"""
