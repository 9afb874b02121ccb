"""A report on a run or a comparison: its sections, from what a folder tells."""

from __future__ import annotations

from mutua.reports.document import Report, Section
from mutua.reports.figures import method_colours
from mutua.reports.sections.attendance import attendance_blocks
from mutua.reports.sections.better_off import better_off_blocks
from mutua.reports.sections.certificates import certificate_blocks
from mutua.reports.sections.clients import client_blocks, interval_tables
from mutua.reports.sections.curves import curve_blocks, trade_off_blocks
from mutua.reports.sections.data import data_pictures, label_pictures, load_federations
from mutua.reports.sections.messages import message_blocks
from mutua.reports.sections.quality import confusion_pictures, metric_tables
from mutua.reports.sections.repetition import repetition_blocks
from mutua.reports.sections.results import difference_tables, newcomer_tables, result_tables
from mutua.reports.sections.what_was_run import compared_text, run_notes, settings_tables, what_was_run
from mutua.reports.study import Study, damage_as_input_error
from mutua.runs.saving import benefits
from mutua.support.configuration import PathLike


def compose(study: Study, load_data: bool = False, data_dir: PathLike | None = None) -> Report:
    """The report on a study; with `load_data` also what its data show."""
    with damage_as_input_error(study.path):
        return _compose(study, load_data, data_dir)


def _compose(study: Study, load_data: bool, data_dir: PathLike | None) -> Report:
    colour = _colours(study)
    missing = list(study.missing)
    data = load_federations(study, data_dir, missing) if load_data else {}
    sections = [
        Section("Is each client better off than alone?", (*better_off_blocks(study), *certificate_blocks(study))),
        Section("What was run", (what_was_run(study), *run_notes(study), *settings_tables(study))),
        Section("Results", (*result_tables(study), *difference_tables(study), *metric_tables(study))),
        Section("Learning curves", tuple(curve_blocks(study, colour))),
        Section("Clients", (*client_blocks(study, colour), *interval_tables(study))),
        Section("Who took part", tuple(attendance_blocks(study))),
        Section("Which classes are taken for which", tuple(confusion_pictures(study, missing))),
        Section("Newcomers", tuple(newcomer_tables(study))),
        Section("Who holds which labels", tuple(label_pictures(study, data))),
        Section(f"{study.headline.name_first} against bytes sent", tuple(trade_off_blocks(study, colour))),
        Section("What left each client", tuple(message_blocks(study))),
    ]
    if load_data:
        sections.append(Section("The data", tuple(data_pictures(study, data, missing))))
    else:
        missing.append(
            "training labels, PCA of features and UMAP of the data: they need the data; give --load-data"
        )
    if not any(run.alone or any(benefits(run.path)) for run in study.runs):
        missing.append("who is better off than alone: there is no run of method independent on the same data")
    sections += [
        Section("What this report lacks", tuple(dict.fromkeys(missing))),
        Section("To repeat it", tuple(repetition_blocks(study, load_data))),
    ]
    name = str(study.runs[0].section("name") or study.path.name)
    return Report(f"{name}: {compared_text(study)}", tuple(section for section in sections if section.blocks))


def _colours(study: Study) -> dict[str, str]:
    """By label: the first contender of a method has the method's own colour, others take free ones."""
    names: dict[str, str] = {}
    for label in study.labels:
        method = study.method(label)
        names.setdefault(contender := study.contender(label), contender if method in names.values() else method)
    found = method_colours(names.values())
    return {label: found[names[study.contender(label)]] for label in study.labels}
