"""`pdctl orphans`: what pdctl made on EC2 and nobody may know of any more."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UsageError
from pdctl.base.exits import ExitCode
from pdctl.cli import options, ui

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.deploy.ec2things import Thing


def orphans(
    file: options.File = options.DEFAULT_FILE,
    region: Annotated[
        str | None, typer.Option("--region", help="Region; default is that of the file.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="AWS profile.")] = None,
    json: options.Json = False,
) -> None:
    """List what carries pdctl's tags on EC2 in a region, and whether this machine knows of it.

    Exit status 0: nothing, or everything belongs to deployments that this machine knows.
    1: something does not. Ends nothing; `pdctl down --name NAME --region REGION` does.
    """
    from pdctl.deploy.ec2things import made_things
    from pdctl.targets.ec2 import Ec2

    if region is None:
        region, profile = _in_file(file, profile)
    found = made_things(Ec2(region, profile))
    lost = [each for each in found if not _is_known(each)]
    if json:
        ui.json(
            {
                "region": region,
                "things": [_as_dict(each, known=each not in lost) for each in found],
            }
        )
    else:
        _show(region, profile, found, lost)
    if lost:
        raise typer.Exit(int(ExitCode.BAD_ANSWER))


def _in_file(file: "Path", profile: str | None) -> tuple[str, str | None]:
    from pdctl.config.model import Ec2Target
    from pdctl.render.check import load_checked

    target = load_checked(file).config.target
    if not isinstance(target, Ec2Target):
        raise UsageError(
            f"`{file}` is not about EC2", where="key `target.kind`", hints=["give `--region`"]
        )
    return target.region, profile or target.profile


def _is_known(thing: "Thing") -> bool:
    """Its deployment has a record here, of the very making that the tag names."""
    from pdctl.state.cloud import CloudStore
    from pdctl.state.store import StateError

    try:
        cloud = CloudStore(thing.deployment).load() if thing.deployment else None
    except StateError:
        return False  # a record that cannot be read knows nothing
    return cloud is not None and cloud.run == thing.made_by


def _as_dict(thing: "Thing", *, known: bool) -> dict[str, object]:
    return {
        "kind": thing.kind,
        "id": thing.id,
        "deployment": thing.deployment,
        "host": thing.host or None,
        "state": thing.state or None,
        "known": known,
    }


def _show(region: str, profile: str | None, found: "list[Thing]", lost: "list[Thing]") -> None:
    if not found:
        ui.say(f"nothing in {region} carries pdctl's tags", "ok")
        return
    ui.table(
        ["kind", "id", "deployment", "host", "state", "known here"],
        [
            [e.kind, e.id, e.deployment, e.host or None, e.state or None, _yes(e not in lost)]
            for e in found
        ],
    )
    login = "" if profile is None else f"AWS_PROFILE={shlex.quote(profile)} "
    for name in sorted({each.deployment for each in lost}):
        ui.say(f"end it with: {login}pdctl down --name {name} --region {region}", "warn")


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
