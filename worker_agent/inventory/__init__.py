"""The engines that this machine has."""
