"""What people are shown of destinations and connections."""
