"""What is decided about a run, of its figures alone: whether it passed, whether it counts, and which rate is sustained."""
