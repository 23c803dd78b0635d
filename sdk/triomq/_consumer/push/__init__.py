"""The push consumer: messages are handed to a handler, concurrently or in order."""
