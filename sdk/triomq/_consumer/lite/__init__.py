"""The lite pull consumer: messages are fetched ahead, the caller polls them."""
