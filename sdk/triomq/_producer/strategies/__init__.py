"""What users may replace in a producer: what is tried again, and which broker and queue are next."""
