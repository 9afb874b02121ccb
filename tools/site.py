"""Hooks for mkdocs: pages lie as in the repository, so that links work in both, and load nothing from the web."""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")
LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|object)\b[^>]*\b(?:src|srcset|href|data)=["']?((?:https?:)?//[^"'\s>]*)"""
    r"""|(?:@import\s+|url\()["']?((?:https?:)?//[^"')\s]*)"""
    r"""|class="(mermaid)\""""  # a drawing for which the theme loads a script
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the documents below docs/, and beside them what they link to: the README is the home page."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:  # others are the theme's
        files.remove(file)
        files.append(File.generated(config, f"docs/{file.src_uri}", abs_src_path=file.abs_src_path))
    for path in (*(ROOT / name for name in BESIDE), *(ROOT / "examples").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def loaded_from_the_web(text: str) -> list[str]:
    """What a browser that shows this HTML or CSS would fetch from elsewhere; links to follow do not count."""
    return ["".join(found) for found in LOADED.findall(text)]


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Warn, which `--strict` makes a failure, where a file of the site would load something from the web."""
    site = Path(config.site_dir)
    for path in sorted(path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")):
        for address in loaded_from_the_web(path.read_text(encoding="utf-8")):
            logging.getLogger("mkdocs.hooks").warning("%s loads %s", path.relative_to(site), address)
