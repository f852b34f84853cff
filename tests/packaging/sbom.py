"""The bill of materials of a release: what it is, and what each extra brings, as it was tried.

    python sbom.py FOLDER      writes sinkfence-VERSION.cdx.json into it

CycloneDX 1.6, JSON (ECMA-424). The wheel contains nothing that isn't ours, so every other component is
`optional`: it is installed beside it, by an extra. Versions are those of the environment that this runs in,
which are those of requirements.lock. The same environment gives the same bytes.
"""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
USERS = ("all", "demo")
"""The extras that a user installs. The others are for those who work on it."""


def bill() -> dict[str, Any]:
    """The bill, of what is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    itself = f"pkg:pypi/{project['name']}@{project['version']}"
    direct = wanted(distribution(project["name"]), frozenset(USERS))
    found = closure(direct)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, itself)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": itself,
                "purl": itself,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": purl(one),
                "purl": purl(one),
                "name": one.metadata["Name"],
                "version": one.version,
                "scope": "optional",
                **licence(one),
            }
            for one, _ in found.values()
        ],
        "dependencies": [
            {"ref": itself, "dependsOn": sorted(purl(found[name][0]) for name in direct if name in found)},
            *(
                {"ref": purl(one), "dependsOn": sorted(purl(found[name][0]) for name in on if name in found)}
                for one, on in found.values()
            ),
        ],
    }


def closure(direct: dict[str, frozenset[str]]) -> dict[str, tuple[Distribution, dict[str, frozenset[str]]]]:
    """Every distribution that is installed by these, by name, with what it wants itself."""
    found: dict[str, tuple[Distribution, dict[str, frozenset[str]]]] = {}
    left = dict(direct)
    while left:
        name, extras = left.popitem()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # for another system, or another Python
        known = found[name][1] if name in found else {}
        on = wanted(one, extras) | known
        if name not in found or on != known:
            found[name] = one, on
            left |= on
    return dict(sorted(found.items()))


def wanted(one: Distribution, extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """What a distribution requires with some of its extras here, by name, with the extras asked for."""
    asked: dict[str, frozenset[str]] = {}
    for text in one.requires or []:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            if name == canonicalize_name(one.metadata["Name"]):  # an extra of its own that is made of others
                asked |= wanted(one, frozenset(requirement.extras))
            else:
                asked[name] = asked.get(name, frozenset()) | requirement.extras
    return asked


def purl(one: Distribution) -> str:
    """A package's URL (ECMA-427)."""
    return f"pkg:pypi/{canonicalize_name(one.metadata['Name'])}@{one.version}"


def licence(one: Distribution) -> dict[str, Any]:
    """Its licence, where its metadata has it as an SPDX expression (PEP 639) or else by name."""
    if expression := one.metadata.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    named = one.metadata.get("License") or ""
    return {"licenses": [{"license": {"name": named}}]} if named and "\n" not in named else {}


if __name__ == "__main__":
    made = bill()
    path = Path(sys.argv[1]) / f"sinkfence-{made['metadata']['component']['version']}.cdx.json"
    path.write_text(json.dumps(made, indent=2) + "\n")
    print(f"Successfully built {path.name}")
