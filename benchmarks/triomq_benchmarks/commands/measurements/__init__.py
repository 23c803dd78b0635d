"""Sub-commands that make one measurement, with loads of their own, and print its table."""
