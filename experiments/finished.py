"""Which runs of a study are finished, as they are asked for now."""

from ddpsched.config import RunConfig, load
from ddpsched.errors import ConfigError, RunExistsError
from ddpsched.run_folder import read_environment, read_status
from experiments.launches import Launch


def is_done(launch: Launch) -> bool:
    """Return whether all runs of a launch are finished, and as one: times of two launches are not compared.

    Raises RunExistsError for a finished run of another config, DataError for one whose environment cannot be read.
    """
    if not all([_is_finished(run) for run in launch.runs]):
        return False
    if launch.how == "apart":
        return True
    facts = (read_environment(run.run_dir) for run in launch.runs)
    return len({(each.get("launch") or {}).get("id") for each in facts}) == 1


def _is_finished(run: RunConfig) -> bool:
    """Return whether this run is done. Raises RunExistsError where a finished one of its name has another config."""
    if read_status(run.run_dir)["state"] != "done":
        return False
    try:
        stored, wanted = load(run.run_dir / "config.toml").model_dump(), run.model_dump()
    except ConfigError as error:
        fault = str(error).splitlines()[0].partition(": ")[2]
        raise RunExistsError(
            f"{run.run_dir} holds a finished run whose config this version does not read ({fault}); give another "
            "study=..., or --overwrite to run it again"
        ) from None
    differing = [
        f"{key}: {was} there, {now} now"
        for table in stored
        if table not in ("outputs", "log")  # the same folder may be spelled in two ways; sinks change nothing
        for key, was, now in _differences(table, stored[table], wanted[table])
    ]
    if differing:
        raise RunExistsError(
            f"{run.run_dir} holds a finished run of another config ({'; '.join(differing)}); "
            "give another study=..., or --overwrite to run it again"
        )
    return True


def _differences(key: str, was: object, now: object) -> list[tuple[str, object, object]]:
    if isinstance(was, dict) and isinstance(now, dict):
        return [each for inner in was for each in _differences(f"{key}.{inner}", was[inner], now.get(inner))]
    return [] if was == now else [(key, was, now)]
