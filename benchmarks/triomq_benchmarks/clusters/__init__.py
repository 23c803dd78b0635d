"""Clusters to measure: ours and the Java one, as child processes."""
