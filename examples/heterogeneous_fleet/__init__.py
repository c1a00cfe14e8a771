"""One machine plays three unlike workers, and deadlines decide in which power mode they run."""
