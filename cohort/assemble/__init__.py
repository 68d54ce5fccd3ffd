"""Where a config becomes objects: the only code below the command line that reads one."""
