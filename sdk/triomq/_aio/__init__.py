"""The asyncio client: trio runs as a guest of the user's loop, and calls cross from one to the other."""
