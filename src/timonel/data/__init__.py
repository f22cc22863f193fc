"""What studies read: N4 and the culture table, as plain dataclasses; this room knows no model."""
