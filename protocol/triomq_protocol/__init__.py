"""RocketMQ's wire and storage formats: encoding and decoding only. Nothing here does I/O, waits, or reads a clock."""
