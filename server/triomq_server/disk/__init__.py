"""Disk access for servers: mapped files, small files, tables that are written whole, and locks of directories."""

from triomq_server.disk.access import Disk, StoreLocked
from triomq_server.disk.real_disk import THREADS_CURE, RealDisk

__all__ = ["THREADS_CURE", "Disk", "RealDisk", "StoreLocked"]
