"""Work on the store of a broker that does not run: checks of all of it, repairs from a copy or from itself."""
