"""Handlers of operators' requests, one module per subject."""
