"""Tables of mixed columns: read from files, frames and databases, and made into numbers."""
