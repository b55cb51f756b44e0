"""Write requirements/tested.txt: the versions of this environment, of everything that setup.cfg asks for.

    python tools/tested_versions.py

It is a constraints file: `pip install -c requirements/tested.txt .` installs what the tests ran with. It names no
address and no folder.
"""

import configparser
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
TESTED = ROOT / "requirements" / "tested.txt"
HEADER = """\
# The versions that the tests ran with: pip install -c requirements/tested.txt .
# Written by `python tools/tested_versions.py` from the environment of `make install`; nothing is edited by hand.
"""


def read_requirements(path: Path = ROOT / "setup.cfg") -> list[Requirement]:
    """Return what the package and its extra `dev` ask for, on this machine: what `make install` installs."""
    parser = configparser.ConfigParser()
    parser.read(path, encoding="utf-8")
    texts = [parser["options"]["install_requires"], parser["options.extras_require"]["dev"]]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def required_versions(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Return {name: version} of the installed packages that are needed, directly or by others; sorted."""
    versions: dict[str, str] = {}
    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        try:
            found = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            continue  # not needed here: as a package for another system
        versions[canonicalize_name(wanted.name)] = Version(found.version).public  # without a local +cu130
        waiting += _needs(found.requires or (), wanted.extras)
    return dict(sorted(versions.items()))


def _needs(texts: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    for text in texts:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one


def read_tested(path: Path = TESTED) -> dict[str, str]:
    """Return {name: version} of the file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def main() -> None:
    """Write requirements/tested.txt: the versions of everything that setup.cfg asks for, in this environment."""
    versions = required_versions(read_requirements())
    TESTED.parent.mkdir(exist_ok=True)
    TESTED.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")
    print(f"{TESTED}: {len(versions)} packages")


if __name__ == "__main__":
    typer.run(main)
