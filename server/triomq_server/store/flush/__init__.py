"""When what was appended is safe: forcing it to the disk, what a failed flush leaves in doubt, and sends that wait."""
