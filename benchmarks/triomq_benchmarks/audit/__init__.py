"""Looking for lost, repeated or altered messages."""
