"""Users, permissions, rates: the guard, part by part."""
