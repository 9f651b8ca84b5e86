"""Records in, tables and figures out: load -> settings -> metrics -> tables -> figures."""
