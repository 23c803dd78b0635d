"""The quickstart and the demos."""
