"""Rows and columns: from stored records to Arrow, from rows to messages."""
