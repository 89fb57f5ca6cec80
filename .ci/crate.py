"""Write data/records/ro-crate-metadata.json: what the records are, file by file, and what made them (an RO-Crate).

    python -m pip install rocrate==0.16.0 && python .ci/crate.py

Run it after `jot pack`; tests/test_environment.py compares the crate with the manifest.
"""

from __future__ import annotations

import json
from pathlib import Path

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "data" / "records"


def main() -> None:
    manifest = json.loads((RECORDS / "manifest.json").read_text())
    citation = json.loads((ROOT / ".zenodo.json").read_text())
    crate = ROCrate(gen_preview=False)
    crate.name = f"{citation['title']}: recorded samples"
    crate.description = "One row a decoded sample, packed by model, task and split; read by jot.records.load_store."
    crate.license = citation["license"]
    about = {"@type": "SoftwareSourceCode", "name": citation["title"], "version": citation["version"]}
    software = crate.add(ContextEntity(crate, "#jot", properties=about))
    machines = {}
    for place in manifest["places"]:
        kind, versions = place["hardware"]["kind"], place["versions"]
        name = f"{kind}, torch {versions['torch']}"
        properties = {"@type": "IndividualProduct", "name": name, "description": json.dumps(versions, sort_keys=True)}
        if name not in machines:
            machines[name] = crate.add(ContextEntity(crate, f"#machine-{len(machines) + 1}", properties=properties))
    for name in sorted({cell["file"] for cell in manifest["cells"].values()}):
        cells = [cell for cell in manifest["cells"].values() if cell["file"] == name]
        used = {place["hardware"]["kind"] + ", torch " + place["versions"]["torch"]
                for place in (manifest["places"][cell["place"]] for cell in cells)}  # fmt: skip
        data = {"name": name.removesuffix(".parquet"), "encodingFormat": "application/vnd.apache.parquet"}
        data |= {"contentSize": str((RECORDS / name).stat().st_size), "sha256": cells[0]["sha256"]}
        made = crate.add_file(RECORDS / name, name, properties=data | {"description": f"{len(cells)} runs"})
        action = {"@type": "CreateAction", "name": f"decoding of {made['name']}"}
        made_by = crate.add(ContextEntity(crate, f"#decoding-{made['name']}", properties=action))
        made_by["instrument"] = [software, *(machines[kind] for kind in sorted(used))]
        made_by["result"] = made
    crate.metadata.write(RECORDS)


if __name__ == "__main__":
    main()
