from homes_command import run_homes


def test_help_names_every_command():
    text = run_homes("--help").stdout
    for command in ("demo", "simulate", "web", "codes"):
        assert command in text
        assert "--help" in run_homes(command, "--help").stdout
