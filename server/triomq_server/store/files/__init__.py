"""Files as the store uses them: the disk, its in-memory twin for tests, segments, small state files."""
