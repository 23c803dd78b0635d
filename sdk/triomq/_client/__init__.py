"""The client: its options, its members, its opening and its end."""
