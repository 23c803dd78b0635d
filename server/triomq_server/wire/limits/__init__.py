"""What the links of a server share: limits, budgets of bytes, places for connections, turns of the loop, counts."""
