"""The ``cohort`` command. One file per subcommand; each is imported when it is asked for."""
