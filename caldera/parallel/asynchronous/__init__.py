"""Training without waiting for each other: parameter servers and Hogwild."""
