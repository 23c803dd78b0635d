"""The remoting format: frames, commands, JSON and binary headers, bodies."""
