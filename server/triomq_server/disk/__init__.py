"""Disk access for servers: mapped files, small files, tables that are written whole, and locks of directories."""

from triomq_server.disk.access import THREADS_CURE, Disk, RealDisk, StoreLocked

__all__ = ["THREADS_CURE", "Disk", "RealDisk", "StoreLocked"]
