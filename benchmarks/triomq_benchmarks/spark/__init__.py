"""Load and audits on Spark."""
