"""Hooks for mkdocs: pages lie as in the repository, so that links work in both, and load nothing from the web."""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")
LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the documents below docs/, and beside them what they link to: the README is the home page."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:  # others are the theme's
        files.remove(file)
        files.append(File.generated(config, f"docs/{file.src_uri}", abs_src_path=file.abs_src_path))
    for path in (*(ROOT / name for name in BESIDE), *(ROOT / "examples").iterdir()):
        if path.is_file():
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Warn, which `--strict` makes a failure, where a page would load something from the web."""
    for address in LOADED.findall(output):
        logging.getLogger("mkdocs.hooks").warning("%s loads %s", page.file.src_uri, address)
