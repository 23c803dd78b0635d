"""How requests travel: frames, commands, JSON and binary headers, bodies."""
