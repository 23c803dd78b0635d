"""Requests that bring a message to be stored or passed on: sends, replies, what is given back, ends of transactions."""
