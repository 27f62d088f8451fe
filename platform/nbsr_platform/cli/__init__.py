"""The `nbsr` command: one file for each verb."""
