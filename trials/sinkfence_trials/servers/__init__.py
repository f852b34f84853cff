"""Real servers for the demo and the tests, started from wheels or from what the system has."""
