"""Drivers: processes that put load on a broker through one client, ours or another, and the scenarios they run."""
