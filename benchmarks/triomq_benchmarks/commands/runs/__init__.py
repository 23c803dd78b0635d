"""Sub-commands about runs of workloads: the run itself, comparisons of runs, and reports of recorded runs."""
