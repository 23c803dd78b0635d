"""The definition of load: workloads, their files, schedules and bodies."""
