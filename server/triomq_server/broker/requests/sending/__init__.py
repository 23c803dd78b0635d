"""Requests with a message to store or pass on: sends, replies, messages sent back, ends of transactions."""
