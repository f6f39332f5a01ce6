"""`aeenc workbench`: the command of this distribution in the SDK's command line."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the command."""
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command("workbench", context_settings=passed_on)
    def workbench(context: typer.Context) -> None:
        """Serves the workbench, on which people build trees in a browser (--help: its options)."""
        from aeenc_workbench.__main__ import main  # imports the server, for which `aeenc --help` need not wait

        main(context.args)
