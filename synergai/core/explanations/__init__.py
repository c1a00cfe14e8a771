"""Why a request or job is late, refused or waits: the facts, their cause, and sentences on them."""
