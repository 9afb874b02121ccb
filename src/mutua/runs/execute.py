"""Carry out a recipe: run it, and write everything into its folder."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from mutua.engines.choice import LOCAL, EngineChoice
from mutua.errors import LeftOut
from mutua.federation.federation import Federation
from mutua.recipe.recipe import Recipe
from mutua.rounds.events import Callback
from mutua.rounds.preparation import Prepared, prepare
from mutua.runs.inputs import HashProgress
from mutua.runs.recording import Recorder
from mutua.runs.result import Result, write_result
from mutua.runs.run import carry_out
from mutua.support import signals


def execute(
    recipe: Recipe,
    federation: Federation | Prepared,
    recorder: Recorder,
    *,
    engine: EngineChoice = LOCAL,
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    show: HashProgress | None = None,
) -> Result:
    """Run a recipe's method on the federation that the recipe describes; the folder gets all results.

    A federation that is not yet prepared for this run is prepared here.
    `show` is called with how far the hashing of the run's inputs has come.
    Ctrl-C, SIGTERM and SIGHUP let the client at work finish its step; then the run is saved and can be resumed.
    """
    with recorder.keeping(), signals.handled(recorder.to_go_on), warnings.catch_warnings():
        if isinstance(federation, Prepared):
            run_state, prepared = recorder.begin(recipe, federation.given, show), federation
        else:  # changes since the run began are reported before the errors they cause
            run_state = recorder.begin(recipe, federation, show)
            prepared = prepare(recipe.method, federation, recipe.plan())
        warnings.simplefilter("ignore", LeftOut)  # it is in the tables and files
        result = carry_out(
            prepared,
            engine=engine,
            workers=workers,
            callbacks=[recorder, *callbacks],
            run_state=run_state,
            faults=recipe.faults,
            files=recorder.store_files(recipe.stores, prepared.store_bytes),
        )
        write_result(result, recorder)
    return result
