"""Reports of the offline phase: characterisation of a fleet, evaluation of policies."""
