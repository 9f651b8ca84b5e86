"""``ddpsched certify``: is the gradient the one it claims to be, and every sample run once? Decided by computation."""
