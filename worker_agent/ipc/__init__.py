"""Protocol between the agent and its engine hosts: frames, shared memory, interrupts."""
