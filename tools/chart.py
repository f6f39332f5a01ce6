"""The Helm chart without helm: `python -m tools.chart [VALUES.yaml]` prints its manifests, checked.

Each manifest is checked by the schemas of Kubernetes, a custom one by its schema in deploy/helm/crds. helm-python-sdk
and kubernetes-validate live in `.venv-chart`, pinned by `requirements/chart.lock` and made on first use (390 MB); this
file runs there, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tools.pinned_venv import ROOT, PinnedVenv, SetupError

HELM = ROOT / "deploy" / "helm"
CHART = HELM / "aeenc"
CRDS = HELM / "crds"
KUBERNETES = "1.37"
RELEASE, NAMESPACE = "prod", "retrieval"


class ChartError(Exception):
    """The chart cannot be rendered with these values, or makes something that Kubernetes refuses."""


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Renders the chart with values over its own, as the release `prod` in the namespace `retrieval`.

    Raises:
        ChartError: values that the chart refuses, or a manifest that Kubernetes would.
        SetupError: its environment cannot be made.
    """
    venv = PinnedVenv.locked(ROOT / ".venv-chart", ROOT / "requirements" / "chart.lock")
    command = [str(venv.python), "-m", "tools.chart", "--here"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(values), capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "found symbolic link" not in line]  # Helm, of files/
        raise ChartError("\n".join(said).strip())
    manifests: list[dict[str, Any]] = json.loads(done.stdout)
    return manifests


def _render_here(values: dict[str, Any]) -> list[dict[str, Any]]:
    import helm_python
    import yaml

    with helm_python.Chart.load(CHART) as chart:
        try:
            files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise ChartError(str(error)) from None
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    manifests = [one for text in texts for one in yaml.safe_load_all(text) if one]
    for manifest in manifests:
        _check(manifest)
    return manifests


def _check(manifest: dict[str, Any]) -> None:
    import jsonschema
    import kubernetes_validate

    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    custom = CRDS / f"{manifest['kind'].lower()}.json"
    try:
        if custom.is_file():
            jsonschema.validate(manifest, json.loads(custom.read_text(encoding="utf-8")))
        else:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except jsonschema.ValidationError as error:
        raise ChartError(f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}") from None
    except kubernetes_validate.SchemaNotFoundError:
        raise ChartError(f"{name}: Kubernetes {KUBERNETES} does not know it, and {custom.name} is not there") from None


def main() -> None:
    """Prints the manifests; `--here`, in `.venv-chart`, reads values as JSON from stdin and prints JSON."""
    if sys.argv[1:] == ["--here"]:
        try:
            json.dump(_render_here(json.load(sys.stdin)), sys.stdout)
        except ChartError as error:
            sys.exit(str(error))
        return
    import yaml

    values = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")) if sys.argv[1:] else {}
    try:
        with redirect_stdout(sys.stderr):  # what the making of the environment says
            manifests = render(values)
        print(yaml.safe_dump_all(manifests, sort_keys=False), end="")
    except (ChartError, SetupError) as error:
        sys.exit(f"chart: {error}")


if __name__ == "__main__":
    main()
