"""What a broker's work costs as what it holds grows: `triomq bench growth`."""
