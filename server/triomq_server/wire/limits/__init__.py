"""Limits and counters shared by a server's links: limits, byte budgets, places for connections, turns of the loop."""
