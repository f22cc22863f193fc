"""The command line: one file a command, and no logic; torch is imported when a command needs it."""
