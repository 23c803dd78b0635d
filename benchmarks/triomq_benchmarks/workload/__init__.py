"""What load is: workloads, their files, schedules and bodies."""
