"""The hosts of a deployment on EC2, as its record has them: their addresses, how to reach them."""

import shlex
from collections.abc import Mapping
from dataclasses import replace

from pdctl.base import paths
from pdctl.config.model import Config, Ec2Target
from pdctl.render.model import Chosen
from pdctl.state.cloud import KEY_FILE, KNOWN_HOSTS, Cloud, CloudHost, CloudStore
from pdctl.targets.ssh.access import Login
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.host import SshHost as Machine


def ec2_hosts(config: Config) -> Mapping[str, Machine]:
    """The hosts by name, none when none was made yet; nothing is connected to."""
    target = config.target
    assert isinstance(target, Ec2Target)
    cloud = CloudStore(config.name).load()
    if cloud is None:
        return {}
    links = Links()
    return {
        name: Machine(name, _login(config.name, target, cloud, host), links=links)
        for name, host in cloud.hosts.items()
    }


def with_addresses(config: Config, chosen: Chosen) -> Chosen:
    """The same with the addresses of hosts that did not exist when the file was written."""
    if not isinstance(config.target, Ec2Target):
        return chosen
    cloud = CloudStore(config.name).load()
    hosts = cloud.hosts.values() if cloud else ()
    return replace(chosen, addresses={h.name: h.private_ip for h in hosts if h.private_ip})


def outside_address(target: Ec2Target, host: CloudHost) -> str | None:
    """Where a host is reached from here."""
    if target.network.access == "elastic-ip":
        return host.public_ip or host.private_ip
    return host.private_ip


def _proxy(target: Ec2Target) -> str | None:
    """The AWS CLI's own ways to a host that has no address to come in by; None to its address."""
    words = ["--region", target.region]
    if target.profile is not None:
        words += ["--profile", shlex.quote(target.profile)]
    where = " ".join(words)
    if target.network.access == "ssm":
        return (
            f"aws ssm start-session {where} --target %h --document-name AWS-StartSSHSession "
            "--parameters portNumber=%p"
        )
    if target.network.access == "instance-connect":
        return f"aws ec2-instance-connect open-tunnel {where} --instance-id %h --remote-port %p"
    return None


def _login(name: str, target: Ec2Target, cloud: Cloud, host: CloudHost) -> Login:
    access, folder = target.access, paths.deployment_dir(name)
    key = access.key_file
    if key is None and cloud.made_key:
        key = folder / KEY_FILE
    # Nobody can know the key of a host that did not exist before.
    pin = access.host_keys == "pin-first-use"
    if "host_keys" not in access.model_fields_set:
        pin = host.made
    limit = access.connect_timeout if "connect_timeout" in access.model_fields_set else None
    proxy = _proxy(target)
    address = host.id if proxy else outside_address(target, host)
    return Login(
        address=address or f"no-address-of-{host.id}",
        user=access.user,
        port=access.port,
        key_file=key,
        jump=None if proxy else access.jump,
        proxy=proxy,
        pin=pin,
        connect_timeout=limit,
        pinned=folder / KNOWN_HOSTS,
    )
