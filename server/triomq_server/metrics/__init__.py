"""Metrics of servers: histograms, the text that Prometheus reads, and the port where it is read.

What is counted is in the modules that do the work; which metrics a broker and a name server have is in
`triomq_server.broker.metrics` and `triomq_server.namesrv.metrics`. RocketMQ 4.9 has no such port.
"""
