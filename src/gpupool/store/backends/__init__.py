"""SQLite and PostgreSQL: connections, transactions, threads, leadership and errors."""
