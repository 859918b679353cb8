"""How deva-lab is built, whose package lies outside this folder, beside the library's.

A clone has it in ../src. An sdist must have all that it needs within itself, and has it in src.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Adds the library of the same version to the dependencies."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies; in an sdist they are known, and this is not called."""
        library = f"deva-optim=={metadata['version']}"
        metadata["dependencies"] = [library, *self.config["dependencies"]]


class CustomBuildHook(BuildHookInterface[Any]):
    """Includes the package of a clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the package, unless the folder has it or an editable install leads to it."""
        if version == "editable" or Path(self.root, "src").is_dir():
            return
        package = Path(self.root).parent / "src/deva_lab"
        target = "deva_lab" if self.target_name == "wheel" else "src/deva_lab"
        build_data["force_include"][str(package)] = target
