"""Batch and streaming writes."""
