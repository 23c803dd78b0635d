"""Sub-commands about runs of workloads: the run itself, comparisons of runs, and what is made of recorded ones."""
