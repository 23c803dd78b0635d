"""The role of a broker in its set, master or slave: changes of the role, the tasks of a slave, a returning master."""
