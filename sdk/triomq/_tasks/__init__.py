"""Tasks of trio: several calls side by side, the groups of their errors, and tasks that run users' functions."""
