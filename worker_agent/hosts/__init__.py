"""The agent's side of the engine hosts: started, fed and watched."""
