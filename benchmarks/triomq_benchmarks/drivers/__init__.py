"""Drivers: processes that put load on a broker through one client, triomq's or another, and the scenarios they run."""
