"""Disk access for servers: mapped files, small files, tables that are written whole, and locks of directories."""

from triomq_server.disk.access import Disk, RealDisk, StoreLocked

__all__ = ["Disk", "RealDisk", "StoreLocked"]
