"""Batch and streaming reads: plan, pull, filter."""
