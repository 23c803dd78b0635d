"""The replaceable parts of a producer: retry policies, and the choice of the next broker and queue."""
