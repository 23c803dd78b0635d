"""What `triomq admin` does: states of a cluster, changes of roles, the repair of a store from another broker."""
