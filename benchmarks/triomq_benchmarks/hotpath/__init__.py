"""What happens to every message, per second and core: the parts of the hot path."""
