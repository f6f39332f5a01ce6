"""The command line `aeenc`, by noun. Flags, output and exit codes are part of what the SDK promises."""
