"""What people write: policies and job files, and how they are validated."""
