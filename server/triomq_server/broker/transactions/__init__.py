"""Transactions: which half messages have ended, and the check of those that have not with their producers."""
