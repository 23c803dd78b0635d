"""The store's own files: segments of fixed size, the checkpoint, and a log file's descriptor."""
