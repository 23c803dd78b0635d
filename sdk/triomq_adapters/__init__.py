"""Task queues and message frameworks over RocketMQ, each in a module of its own with an extra of its own.

``triomq_adapters.kombu`` is a transport of Kombu and Celery, ``triomq_adapters.taskiq`` a broker of Taskiq. None is imported by this package: each needs its framework.
"""
