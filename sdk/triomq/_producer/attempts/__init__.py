"""The attempts at sending one message: the choice of a queue, the request, and the answer's meaning."""
