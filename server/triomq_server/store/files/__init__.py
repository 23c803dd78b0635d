"""The store's files: segments of fixed size, the checkpoint, and writes to the log through a descriptor."""
