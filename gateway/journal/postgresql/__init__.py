"""Journal in a PostgreSQL database, which several gateways may share: one leads, others wait."""
