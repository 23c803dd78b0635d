"""Encoding and decoding of RocketMQ's wire and storage formats, without I/O, waits or clocks."""
