"""A browser workbench for people who build entailment trees: `aeenc-workbench`, or `app.make_app` in your server."""
