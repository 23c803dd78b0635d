"""Finds damaged parts of the log and damaged queue entries, and replaces them so that readers get past them."""
