"""A server's process: its end at a signal, and the line that states why it could not start or continue."""
