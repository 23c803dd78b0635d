"""Comparisons with the Java broker and client."""
