"""The state of a whole cluster at one moment, and what is wrong with it."""
