"""Transactions: tracks which half messages have ended, and checks the others with their producers."""
