"""The state of a whole cluster at one moment, and its problems."""
