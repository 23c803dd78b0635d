"""Values that users send and receive: messages, queues, results, subscriptions, and the hooks that see them."""
