"""Task queues, message frameworks and tracing over RocketMQ, each in its own module with its own extra.

``triomq_adapters.kombu`` is a transport of Kombu and Celery, ``triomq_adapters.taskiq`` a broker of Taskiq,
``triomq_adapters.faststream`` one of FastStream, ``triomq_adapters.opentelemetry`` gives sends and handlers spans. None is imported by this package: each needs its
framework.
"""
