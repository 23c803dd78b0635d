"""The parts of the hot path, the work done for every message, measured per second and core."""
