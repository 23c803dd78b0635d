"""The attempts at sending one message: where each goes, its request, and what the answer means."""
