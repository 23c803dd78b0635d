"""The cost of a broker's work as its content grows: `triomq bench growth`."""
