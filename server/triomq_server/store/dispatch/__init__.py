"""Dispatch: queue entries, index entries and arrivals of the records in the log, whether appended here or sent by a master."""
