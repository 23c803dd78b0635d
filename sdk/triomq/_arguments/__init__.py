"""What callers give: checks of its kinds and of its numbers, and which of their functions are async."""
