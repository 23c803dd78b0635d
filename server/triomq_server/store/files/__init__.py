"""Files as the store uses them: the disk, an in-memory disk for tests, segments, small state files."""
