"""A hook of mkdocs: the site has the repository's folders, so that links work on both."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")


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
