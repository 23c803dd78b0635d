"""Administration of topics, routes and consumer groups."""
