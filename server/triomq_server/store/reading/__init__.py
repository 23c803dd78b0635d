"""Reading from the store: by queue offset, by key or id, and from the tail for comparison."""
