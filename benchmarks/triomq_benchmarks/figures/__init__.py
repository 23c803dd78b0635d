"""Figures of a run: rows, histograms, ledgers, results and their files."""
