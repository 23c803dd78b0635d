"""The command line: options and the sub-commands of `triomq`."""
