"""Power modes of the machine: listed, switched and read back."""
