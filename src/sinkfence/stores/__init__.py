"""Where the counting is kept: `sql` for PostgreSQL and SQLite, `memory` for tests."""
