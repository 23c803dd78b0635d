"""The process of a server: its end at a signal, and the line that says why it could not start or go on."""
