"""What a broker is to its set, master or slave: changing the role, the tasks of a slave, a returning master."""
