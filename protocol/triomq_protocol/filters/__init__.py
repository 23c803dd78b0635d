"""Subscription filters: tags, SQL92 expressions, and their evaluation."""
