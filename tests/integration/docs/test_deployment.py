"""The files of the page on deployment: their commands are understood, and nothing runs as root."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from triomq_server.commands.broker import broker
from triomq_server.commands.namesrv import namesrv

FOLDER = Path(__file__).parents[3] / "docs" / "how-to" / "deployment"
COMMANDS = {"broker": broker, "namesrv": namesrv}


def printed(arguments: list[str], name_servers: str | None = None) -> str:
    """The settings in force by a command; every setting that would give a warning is refused."""
    environment = {"NAMESRV_ADDR": name_servers}
    result = CliRunner().invoke(COMMANDS[arguments[0]], [*arguments[1:], "--strict", "-p"], env=environment)
    assert result.exit_code == 0, result.output
    return result.output


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return loaded


def test_compose_has_two_masters_with_a_slave_each() -> None:
    services = compose()["services"]
    roles = {}
    for name, service in services.items():
        settings = printed(service["command"], service["environment"]["NAMESRV_ADDR"])
        assert service["image"] == "triomq"
        assert service["init"]
        assert set(service.get("depends_on", ())) <= services.keys()
        if service["command"][0] == "broker":
            assert "namesrvAddr=namesrv-1:9876;namesrv-2:9876" in settings
            found = dict(re.findall(r"^(brokerName|brokerId|brokerRole)=(.*)$", settings, flags=re.MULTILINE))
            roles[name] = found["brokerName"], found["brokerId"], found["brokerRole"]
            (volume,) = service["volumes"]
            assert volume.split(":")[0] in compose()["volumes"]
    assert roles == {
        "broker-a": ("broker-a", "0", "ASYNC_MASTER"),
        "broker-a-s": ("broker-a", "1", "SLAVE"),
        "broker-b": ("broker-b", "0", "ASYNC_MASTER"),
        "broker-b-s": ("broker-b", "1", "SLAVE"),
    }


def test_the_image_runs_as_no_root_and_is_looked_at() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER [1-9]\d*$", final, flags=re.MULTILINE)
    assert "HEALTHCHECK" in final
    assert '["triomq", "doctor"' in final


@pytest.mark.parametrize("ordinal", ["0", "1"])
def test_kubernetes_manifests(ordinal: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    for each in objects:
        if each["kind"] != "StatefulSet":
            continue
        assert each["spec"]["serviceName"] in services
        pod = each["spec"]["template"]
        assert pod["metadata"]["labels"] == each["spec"]["selector"]["matchLabels"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = pod["spec"]["containers"]
        ports = {port["containerPort"] for port in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"]["port"] in ports
        if "command" not in container:
            printed(container["args"])
            continue
        (script,) = container["args"]
        words = shlex.split(script[script.index("exec triomq ") :].replace("\\\n", " "))[2:]
        values = {"$id": ordinal, "$role": "SLAVE" if int(ordinal) else "ASYNC_MASTER", "$POD_IP": "10.0.0.1"}
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        settings = printed(words, environment["NAMESRV_ADDR"])
        assert f"brokerId={ordinal}" in settings


@pytest.mark.parametrize("name", ["triomq-namesrv.service", "triomq-broker@.service"])
def test_units_start_what_there_is(tmp_path: Path, name: str) -> None:
    unit = (FOLDER / name).read_text()
    (line,) = re.findall(r"^ExecStart=/opt/triomq/bin/triomq (.*)$", unit, flags=re.MULTILINE)
    file = tmp_path / "settings.conf"
    file.write_text("brokerName=broker-a\n" if "broker" in name else "listenPort=9876\n")
    settings = printed([str(file) if word.endswith(".conf") else word for word in line.split()], "127.0.0.1:9876")
    key = (
        "storePathRootDir=/var/lib/triomq/%i"
        if "broker" in name
        else "kvConfigPath=/var/lib/triomq/namesrv/kvConfig.json"
    )
    (state,) = re.findall(r"^StateDirectory=(.*)$", unit, flags=re.MULTILINE)
    assert key in settings
    assert f"=/var/lib/{state}" in key
    assert "ReadWritePaths=/etc/triomq\n" in unit
    assert "User=triomq" in unit
    assert "NoNewPrivileges=yes" in unit
