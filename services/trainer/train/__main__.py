"""The trainer's child process, `python -m services.trainer.train COMMAND …`; it ends when its parent does.

Commands: `job DIR`; `rank DIR NUMBER`, further processes of a job; `pretrained REQUEST` and `cross-encoder REQUEST`,
exports; `device REQUEST`. torch is loaded only here, and only where something is computed or traced with it, so the
trainer keeps answering while a job computes, and a job killed for memory takes nothing else along.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aeenc.errors import AeencError, DeadlineExceeded, Overloaded, Unavailable
from services.devices import is_out_of_memory
from services.kit.concurrency import EXIT_DISK_FULL, end_with_parent
from services.store.artifacts import ArtifactStore
from services.store.files import DISK_FULL, atomic_write
from services.trainer.jobs.files import JobFiles

EXIT_WITHOUT_PARENT = 3


def main() -> None:
    """Runs the parent's command."""
    end_with_parent(lambda: os._exit(EXIT_WITHOUT_PARENT))
    command, path = sys.argv[1], Path(sys.argv[2])
    if command == "job":
        _job(JobFiles(path))
    elif command == "rank":
        from services.trainer.train.job import run_rank

        run_rank(JobFiles(path), int(sys.argv[3]))
    else:
        _answer(command, path)


def _job(files: JobFiles) -> None:
    """Computes a job; a failure is written as its result, if the disk still takes one."""
    from services.trainer.train.job import run_job
    from services.trainer.train.loop import Diverged

    try:
        run_job(files)
    except Exception as error:  # noqa: BLE001 - the job must name its failure; the traceback goes to the trainer's log
        if not isinstance(error, (AeencError, Diverged, ValueError)):
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            sys.exit(EXIT_DISK_FULL)  # the result could not be written either
        if isinstance(error, (Unavailable, Overloaded, DeadlineExceeded)):  # the trainer tries again later
            files.write_result({"error": error.message, "transient": True})
        else:
            said = str(error) if isinstance(error, (AeencError, Diverged, ValueError)) else ""
            files.write_result({"error": said or _unexpected(error)})


def _unexpected(error: Exception) -> str:
    """Explains a lack of memory; of another error only its kind is told."""
    if is_out_of_memory(error):
        return "out of memory; lower the batch size or raise `accumulation`, then start a new job"
    return f"internal error ({type(error).__name__}); the trainer's log has it"


def _answer(command: str, path: Path) -> None:
    """Writes what a request asks for into `.result`, or an error with its remedy."""
    request = json.loads(path.read_bytes())
    try:
        if command == "device":
            result = {"device": _device(request)}
        else:
            result = {"version": _exporter(command, request)(ArtifactStore(Path(request["artifacts_dir"])), request)}
    except AeencError as error:
        result = {"error": error.message}
    except ValueError as error:
        result = {"error": str(error)}
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        sys.exit(EXIT_DISK_FULL)  # the result could not be written either
    atomic_write(path.with_suffix(".result"), json.dumps(result).encode())


def _exporter(command: str, request: dict[str, Any]) -> Callable[[ArtifactStore, dict[str, Any]], str]:
    """Imports what a request needs, and torch only where a graph has to be traced."""
    if command == "cross-encoder":
        from services.trainer.train.export.cross_encoder import export_cross_encoder

        return export_cross_encoder
    from services.trainer.train.export.kept_graph import export_kept, is_kept

    if is_kept(request):
        return export_kept
    from services.trainer.train.export.checkpoint import export_pretrained

    return export_pretrained


def _device(request: dict[str, Any]) -> str:
    """Names the device of a job's first process."""
    from services.trainer.train.encoder import device_of

    return str(device_of(request["wanted"], 0, request["gpu_bytes"]))


if __name__ == "__main__":
    main()
