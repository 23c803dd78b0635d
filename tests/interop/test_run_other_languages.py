"""The examples of the page about other languages, as their tools run them under `triomq run`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.builds import DRIVERS, ToolUnavailableError, built, cache_folder, digest, find_tool
from triomq_benchmarks.clusters.java import QUICK_JVM

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-c", "from triomq_command import main; main()", "run", "--topics", "orders", "--"]
LIMIT_S = 240

JVM_OPTIONS = " ".join(QUICK_JVM)
POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>orders</groupId><artifactId>orders</artifactId><version>1</version>
  <properties>
    <maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client</artifactId><version>4.9.7</version>
    </dependency>
    <dependency>
      <groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId><version>5.10.2</version>
      <scope>test</scope>
    </dependency>
  </dependencies>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-surefire-plugin</artifactId><version>3.2.5</version>
    <configuration><argLine>{JVM_OPTIONS}</argLine></configuration>
  </plugin></plugins></build>
</project>
"""


def example(language: str) -> str:
    page = (ROOT / "docs" / "how-to" / "test-other-languages.md").read_text()
    found = re.search(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)
    assert found is not None
    return found[1]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([*RUN, *command], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_junit(tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(POM)
    (tmp_path / ".mvn").mkdir()
    (tmp_path / ".mvn" / "jvm.config").write_text(JVM_OPTIONS)
    source = tmp_path / "src" / "test" / "java" / "OrdersTest.java"
    source.parent.mkdir(parents=True)
    source.write_text(example("java"))
    try:
        mvn = find_tool("mvn")
        # Without a broker, so that what is not there to be downloaded is not a failure.
        argv = [mvn, "-q", "-B", "-f", str(tmp_path / "pom.xml"), "test", "-DskipTests"]
        built(cache_folder(f"junit-{digest([], POM, example('java'))}"), argv, "downloading JUnit")
        # Its engine is downloaded when tests run for the first time.
    except ToolUnavailableError as error:
        pytest.skip(str(error))
    assert "Tests run: 1, Failures: 0, Errors: 0, Skipped: 0" in run(tmp_path, mvn, "-B", "test")


def test_go_test(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(DRIVERS / "go" / name, tmp_path)
    (tmp_path / "orders_test.go").write_text(example("go"))
    try:
        go = find_tool("go")
        # Exactly what is run below but for the test itself: what it builds and vets is not done again.
        argv = [go, "test", "-count=1", "-run=^$", "./..."]
        built(cache_folder(f"go-test-{digest([], example('go'))}"), argv, "downloading client-go", cwd=tmp_path)
    except ToolUnavailableError as error:
        pytest.skip(str(error))
    assert run(tmp_path, go, "test", "-count=1", "./...").startswith("ok")


def test_node_test(tmp_path: Path) -> None:
    try:
        node, npm = find_tool("node"), find_tool("npm")
        sources = [DRIVERS / "node" / "package.json"]
        folder = cache_folder(f"node-test-{digest(sources)}")
        argv = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        built(folder, argv, "installing ali-ons", sources=sources, cwd=folder)
    except ToolUnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    (tmp_path / "orders.test.js").write_text(example("javascript"))
    assert re.search(r"pass 1\b", run(tmp_path, node, "--test", "--test-force-exit", "orders.test.js"))
