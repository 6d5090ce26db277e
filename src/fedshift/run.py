"""A run: rounds of a method over a federation under a protocol, saved so that it can go on.

What a round computes is in `fedshift.trip` and `fedshift.aggregate`; this module plays rounds in
order, scores them, writes what a run folder holds, and continues an interrupted run.
"""

from __future__ import annotations

import dataclasses
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedshift import aggregate, checkpoint, evaluate, files, keys, ledger, lines, methods, tree
from fedshift import plan as plans
from fedshift._version import __version__
from fedshift.aggregate import Server
from fedshift.checkpoint import Best, Progress
from fedshift.compose import Composed
from fedshift.engines import Engine, choice
from fedshift.engines.flower.remote import SCORE, Answers, Remote, handle
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.engines.loop import one_thread
from fedshift.engines.stacked import Stacked
from fedshift.errors import BadRun, BadValue
from fedshift.federation import Federation
from fedshift.folder import Folder
from fedshift.kept import Kept
from fedshift.lines import Line as Line
from fedshift.method import Method, Stage, State
from fedshift.models import ModelSpec
from fedshift.oddities import oddities
from fedshift.plan import precision
from fedshift.privacy import Privacy
from fedshift.protocol import Protocol
from fedshift.recommended import recommended_model, recommended_protocol
from fedshift.report import Report
from fedshift.report.read import record
from fedshift.tree import Tree, pick
from fedshift.trip import Job, Result


class FedshiftWarning(UserWarning):
    """Something odd that does not stop a run."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; it was saved, and the message says how to go on."""


def _warn(message: str) -> None:
    warnings.warn(message, FedshiftWarning, stacklevel=3)


class Run:
    """Trains one method on one federation.

    Args:
        federation: who learns what.
        method: a method, a composition of several, or a name such as "fedprox+mixup".
        protocol: how they train (None: what the federation recommends).
        model: a name, "file.py:Net", a module, or a `ModelSpec` (None: what the federation
            recommends).
        seed: of everything random.
        engine: "auto", "loop", "stacked", or "flower" (each client a site of its own, on this
            machine: a test of what would run on many).
        workers: processes of the loop engine on a CPU (None: a measured rule decides).
        chunk: clients at a time in the stacked engine (0: as many as fit).
        device: "auto", "cpu", "cuda", "cuda:1".
        dtype: "float32", "float64", "tf32" (float32 whose products a GPU rounds) or "bf16".
        out: the run's folder (None: nothing is written).
        hold_out: clients that do not train and are scored as unseen.
        checkpoint_every: rounds between checkpoints.
        privacy: clipping of updates and Gaussian noise (None: neither).
        secure: secure aggregation, with the flower engine: what clients upload comes as sums alone
            (None: each upload by itself).
        say: takes sentences about choices made; `warn`: takes warnings.

    >>> import fedshift as fs
    >>> protocol = fs.Protocol(rounds=1, steps=1, batch=8)
    >>> run = fs.Run(fs.data.load("shifted-digits"), "fedavg", protocol, model="mlp").play()
    >>> len(run.lines)  # one per client and one for the round
    6
    """

    def __init__(
        self,
        federation: Federation,
        method: Method | Composed | str,
        protocol: Protocol | None = None,
        model: Any = None,
        *,
        seed: int = 0,
        engine: str = "auto",
        workers: int | None = None,
        chunk: int = 0,
        device: str = "auto",
        dtype: str = "float32",
        out: str | Path | None = None,
        hold_out: Sequence[str] = (),
        checkpoint_every: int = 1,
        privacy: Privacy | None = None,
        secure: Secure | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self.method = _composed(method)
        self.protocol = protocol or recommended_protocol(federation)
        self.seed = seed
        self.dtype = dtype
        self.out = None if out is None else Path(out)
        self._folder = None if self.out is None else Folder(self.out)
        self.hold_out = tuple(hold_out)
        self.checkpoint_every = checkpoint_every
        self.secure = secure
        self.lines: list[Line] = []
        self._say, self._tell = say, warn
        self._warned: list[str] = []
        if dtype not in plans.DTYPES:
            raise BadValue(f"dtype '{dtype}' is not known: choose {', '.join(plans.DTYPES)}")
        if not 0 <= seed < 2**64:  # beyond, keys begin anew: two seeds would give one run
            raise BadValue(f"seed is {seed}: give a whole number from 0 to 2**64 - 1")
        if checkpoint_every < 1:
            raise BadValue(f"checkpoint_every is {checkpoint_every}: give 1 or more rounds")
        self.unseen = tuple(federation[name] for name in self.hold_out)
        self.whole = federation
        rest = federation.without(self.hold_out) if self.hold_out else federation
        self.federation = rest.pooled() if self.method.pooled else rest
        for sentence in oddities(self.federation, self.protocol, self.method.pooled):
            self._warn(sentence)
        spec = ModelSpec.of(recommended_model(federation) if model is None else model)
        self.spec = spec
        facts = self.federation.facts()
        built = spec.build(facts.shape, facts.classes, keys.fold(seed, "model"), facts.task)
        self.device = choice.device_of(device)
        self.plan = plans.make(
            facts,
            self.federation.pipeline,
            self.method,
            self.protocol,
            built,
            self.device,
            dtype,
            seed,
            privacy,
        )
        plans.check_batches(self.plan.model, self.federation, self.protocol)
        if self.unseen and not evaluate.serves_unseen(self.plan):
            self._warn(
                f"{', '.join(self.hold_out)} will have no score: clients of '{self.method.name}' "
                "keep more than norm layers, so there is no model for a site that never took part"
            )
        self._samples = {c.name: len(c.train) for c in self.federation.clients}
        self._place = {c.name: k for k, c in enumerate(self.federation.clients)}
        self.stages = self.method.stages(self.protocol)
        self.engine_name, self.workers = choice.choose(
            self.plan, self.federation, engine, workers, chunk, self._rebuildable(), say
        )
        self.chunk = chunk
        self._elsewhere = self.engine_name == "flower"
        self._check_elsewhere()
        self.progress = self._beginning()
        # what only goes up begins, at a client that never took part, as it was built
        self._unsent = pick(self.progress.server.model, self.plan.names("up"))
        self._ledger = self._check_privacy()
        self._check_secure()
        self._engine: Engine | None = None
        self._began = time.monotonic()

    # -- playing -------------------------------------------------------------------------------

    def play(self, on_round: Callable[[Run, Line], None] = lambda run, line: None) -> Run:
        """Play all rounds that are left; `on_round` gets the line of each round that ended.

        A run with a folder saves itself as it goes. Ctrl-C saves what is there and raises
        `Interrupted`, whose message holds the command that continues.
        """
        self.begin()
        try:
            with precision(self.dtype):
                while not self.ended:
                    on_round(self, self.play_round())
                if self._elsewhere:
                    self._close()
            self.finish()
        except KeyboardInterrupt:
            raise Interrupted(self.save_interrupted()) from None
        finally:
            if self._engine is not None:
                self._engine.close()
                self._engine = None
        return self

    def play_round(self) -> Line:
        """Play the next round alone; the line of it."""
        self._engine = self._engine or self._start_engine()
        start = time.perf_counter()
        jobs = self.due()
        return self.took(jobs, self._play(jobs), start)

    def begin(self) -> None:
        """Open the folder, where there is one, and start the clock."""
        self._open_folder()
        self._began = time.monotonic() - self.progress.seconds

    @property
    def ended(self) -> bool:
        """Whether all rounds are played."""
        return self.progress.stage == len(self.stages)

    def due(self) -> list[Job]:
        """The trips of the next round."""
        stage = self.stages[self.progress.stage]
        jobs = self._jobs(stage, self.progress)
        if self._leaves(stage):
            self._ledger.note(j.client for j in jobs)
        return jobs

    def took(self, jobs: Sequence[Job], result: Result, start: float) -> Line:
        """End the round whose trips were played: aggregate, score, and save where due.

        `start` is when it began, by `time.perf_counter`.
        """
        now = self.progress
        stage = self.stages[now.stage]
        sent = {j.client: aggregate.bytes_down(self.plan, now.server, j.payload) for j in jobs}
        if stage.program == "tune" and now.round > 0:  # each goes on from what it tuned before
            sent = dict.fromkeys(sent, 0)
        came = dict.fromkeys(sent, aggregate.bytes_up(result))
        missing: dict[str, str] = {}
        if isinstance(result, Answers):
            sent, came, missing = result.sent, result.came, result.missing
        with one_thread(self.device):  # many small tensors
            good, left_out = self._sound(stage, now, result)
        kept = now.kept.updated(dict(zip(good.clients, good.kept)))
        server = now.server
        if stage.program != "tune":
            key = keys.fold(self.seed, "server", stage.name, now.round)
            with one_thread(self.device):  # small networks, trained at the server, lose by more
                server = aggregate.absorb(
                    self.plan, server, good, self._samples, now.round, key, stage.name
                )
            if not tree.finite(server.model):
                self._stop("the server's model has", now, "and the server's")
        trained = stage.program in ("train", "tune")
        done = now.done + trained
        last = now.round + 1 == stage.rounds
        scored = trained and (last or done % self.protocol.eval_every == 0)
        found = lines.of_round(
            stage.name,
            done,
            [j.client for j in jobs],
            _losses(good),
            dict(zip(good.clients, good.seconds)),
            came,
            sent,
            {**missing, **left_out},
        )
        found[-1] |= {"seconds": time.perf_counter() - start, "warnings": self._warned}
        self._warned = []
        if self.plan.privacy is not None:
            found[-1] |= self.spent
        late = scored and self._elsewhere
        if scored and not late:
            found = lines.scored(found, self._scores(server, kept), self.method.view)
        if not late:
            self._record(found)
        after = Progress(
            stage=now.stage + last,
            round=0 if last else now.round + 1,
            done=done,
            server=server,
            kept=kept,
            best=self._best(now.best, found[-1], server, kept, scored and not late),
            metrics=self._metrics_size(),
            seconds=time.monotonic() - self._began,
            pending=tuple(found) if late else (),
        )
        self.progress = checkpoint.ordered(after)
        if self.ended or done % self.checkpoint_every == 0:
            self.save()
        return found[-1]

    def _jobs(self, stage: Stage, now: Progress) -> list[Job]:
        jobs = []
        model = {**now.server.model, **self._unsent}
        for name in self._participants(stage, now.round):
            n = self._samples[name]
            payload = self.method.broadcast(now.server.methods, name, now.round)
            jobs.append(
                Job(
                    client=name,
                    stage=stage,
                    round=now.round,
                    lr=self.protocol.rate(min(now.done, self.protocol.rounds - 1)),
                    key=keys.fold(self.seed, "client", name, stage.name, now.round),
                    payload=payload,
                    model=model,
                    kept=now.kept.own(name),
                    place=self._place[name],
                    samples=n,
                    steps=stage.steps(self.protocol, n),
                )
            )
        return jobs

    def _participants(self, stage: Stage, round: int) -> list[str]:
        """Who takes part, in the federation's order; drawn without replacement."""
        names = self.federation.names
        count = len(names) if stage.everyone else self.protocol.participants(len(names))
        if stage.program == "collect" or count == len(names):
            return list(names)
        key = keys.as_tensor(keys.fold(self.seed, "participants", stage.name, round))
        return [names[i] for i in sorted(keys.permutation(key, len(names))[:count].tolist())]

    def _sound(self, stage: Stage, now: Progress, result: Result) -> tuple[Result, dict[str, str]]:
        """The result without clients that came to NaN or infinity; if all did, the run stops."""
        flags = aggregate.sound_kept(result.kept, self.device)
        if self.plan.privacy is not None:
            result, flags = self._taken_back(now, result, flags), [True] * len(flags)
        if stage.program != "tune":
            flags = [a and b for a, b in zip(flags, aggregate.sound(result))]
        left_out = {c: "not finite" for c, good in zip(result.clients, flags) if not good}
        for client in left_out:
            self._warn(
                f"client '{client}' has NaN or infinite values in round {now.done + 1} and is "
                "left out of it: look at its data, lower the learning rate, or clip gradients"
            )
        if not any(flags):
            self._stop("every client has", now, "or clip gradients (--clip)")
        return aggregate.only(result, flags), left_out

    def _taken_back(self, now: Progress, result: Result, good: Sequence[bool]) -> Result:
        """The result in which clients whose own state is not finite go on with what they had.

        Their updates count all the same: to leave them out would tell of their data.
        """
        for client in (c for c, sound in zip(result.clients, good) if not sound):
            self._warn(
                f"what client '{client}' keeps came to NaN or infinity in round {now.done + 1} and "
                "is as it was before: look at its data, or lower the learning rate"
            )
        own = zip(result.clients, result.kept, good)
        kept = [k if sound else now.kept.own(c) for c, k, sound in own]
        return dataclasses.replace(result, kept=kept)

    def _stop(self, who: str, now: Progress, remedy: str) -> NoReturn:
        """End a run that came to NaN, with the last good state saved."""
        self.save()
        where = "" if self.out is None else f"; the state before that round is in {self.out}"
        raise BadRun(
            f"{who} NaN or infinite values in round {now.done + 1}: lower the learning rate (--lr) "
            f"{remedy}{where}"
        )

    def _warn(self, message: str) -> None:
        """Tell the user, and the report (with the line of the round)."""
        self._warned.append(message)
        self._tell(message)

    # -- sites ---------------------------------------------------------------------------------

    def _play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips; from sites, the scores of the round before come with them."""
        assert self._engine is not None
        if not isinstance(self._engine, Remote):
            return self._engine.play(jobs)
        busy = {j.client for j in jobs}
        pending = bool(self.progress.pending)
        watching = [j for j in self._watching() if j.client not in busy] if pending else []
        answers = self._engine.exchange(jobs, watching, pending, self._held())
        self._samples |= answers.samples
        for note in answers.notes:
            self._warn(note)
        if pending:
            self._complete(answers.scores)
        return answers

    def _watching(self) -> list[Job]:
        """Every site's part in an exchange that asks for nothing but scores."""
        now = self.progress
        return [
            Job(name, SCORE, 0, 0.0, 0, State(), now.server.model, dict(kept), 0, 0, 0)
            for name, kept in now.kept.items()
        ]

    def _held(self) -> Mapping[str, Tree]:
        return self.progress.best.kept if self.progress.best is not None else {}

    def _complete(self, scores: Sequence[evaluate.Score]) -> None:
        """Write the last round's lines, now that its scores are here."""
        now = self.progress
        order = {name: k for k, name in enumerate(self.federation.names)}
        known = sorted(scores, key=lambda s: order[s.client])
        found = lines.scored(now.pending, known, self.method.view)
        self._record(found)
        best = self._best(now.best, found[-1], now.server, now.kept, True)
        self.progress = dataclasses.replace(
            now, best=best, metrics=self._metrics_size(), pending=()
        )

    def _close(self) -> None:
        """The closing exchange with sites: the last scores, and the models that the run gave."""
        self._engine = self._engine or self._start_engine()
        assert isinstance(self._engine, Remote)
        missing: dict[str, str] = {}
        last = self.protocol.select not in ("best-val", "best-test")  # its model is the run's
        if self.progress.pending:
            watching = self._watching()
            answers = self._engine.exchange([], watching, True, self._held(), final=last)
            missing = answers.missing
            self._complete(answers.scores)
            self.save()
        if not last:
            missing = self._engine.hand_over(*self.selected)
        for site, why in missing.items():
            self._warn(f"site '{site}' did not get the final model: {why}")

    def _check_secure(self) -> None:
        """Refuse what secure aggregation cannot serve."""
        if self.secure is None:
            return
        if not self._elsewhere:
            raise BadValue(
                f"secure aggregation is between sites, and the {self.engine_name} engine has none: "
                "take the flower engine (--engine flower), or leave it off"
            )
        from fedshift.engines.flower.server import check_secure

        check_secure(self, self.secure)

    def _check_elsewhere(self) -> None:
        if not self._elsewhere:
            return
        if self.hold_out:
            raise BadValue(
                "hold_out needs the held-out clients' data at the server, and with the flower "
                "engine there are none: leave it out, or take another engine"
            )
        if self.checkpoint_every != 1:
            raise BadValue(
                f"checkpoint_every is {self.checkpoint_every}, but sites can take back one round "
                "alone: leave it at 1 with the flower engine"
            )

    # -- scores --------------------------------------------------------------------------------

    def _scores(self, server: Server, kept: Mapping[str, Tree]) -> list[evaluate.Score]:
        seen = evaluate.evaluate(self.plan, server.model, kept, self.federation.scored)
        return seen + evaluate.evaluate_unseen(self.plan, server.model, kept, self.unseen)

    def _best(
        self,
        best: Best | None,
        line: Line,
        server: Server,
        kept: Kept,
        scored: bool,
    ) -> Best | None:
        """The best round so far, for the rules that choose one."""
        value = line["val"] if self.protocol.select == "best-val" else line["mean"]
        if self.protocol.select not in ("best-val", "best-test") or not scored or value is None:
            return best
        later_stage = best is not None and line["stage"] != "train" and best.round < line["round"]
        if best is None or value > best.score or later_stage:
            return Best(value, line["round"], server.model, kept)
        return best

    @property
    def selected(self) -> tuple[Tree, Kept]:
        """The global tensors and what clients keep, of the round that the rule selects."""
        if self.progress.best is not None:
            return self.progress.best.model, self.progress.best.kept
        return self.progress.server.model, self.progress.kept

    @property
    def weights_sha256(self) -> str:
        """A fingerprint of the selected global tensors."""
        return tree.digest(self.selected[0])

    def report(self) -> Report:
        """What the run has shown so far, as tables and pages."""
        folder = "" if self.out is None else str(self.out)
        return Report([record(self.config(), self.lines, folder)])

    # -- the run's folder ----------------------------------------------------------------------

    def config(self) -> Line:
        """Everything that decides the run's results, resolved, with versions."""
        parts = [methods.spec_of(p) for p in self.method.parts]
        privacy = self.plan.privacy
        return {
            "method": self.method.name,
            "data": self.whole.name,
            "model": self.spec.name,
            "seed": self.seed,
            "metric": self.whole.metric,
            "view": self.method.view,
            "select": self.protocol.select,
            "engine": self.engine_name,
            "workers": self.workers,
            "chunk": self.chunk,
            "device": str(self.device),
            "dtype": self.dtype,
            "hold_out": list(self.hold_out),
            "checkpoint_every": self.checkpoint_every,
            "source": {
                "data": self.whole.source,
                "method": "+".join(p for p in parts if p) if all(parts) else "",
            },
            "network": self.spec.to_dict() if self.spec.rebuildable else {"name": ""},
            "settings": methods.settings_of(self.method),
            "protocol": dataclasses.asdict(self.protocol),
            "facts": {
                "task": self.plan.facts.task,
                "classes": list(self.whole.classes),
                "shape": list(self.plan.facts.shape),
                "clients": list(self.plan.facts.clients),
            },
            "pipeline": self.federation.pipeline.to_config(),
            **({} if privacy is None else {"privacy": dataclasses.asdict(privacy)}),
            **({} if self.secure is None else {"secure": dataclasses.asdict(self.secure)}),
            "versions": {
                "fedshift": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def save(self) -> None:
        """Write a checkpoint now."""
        if self._folder is not None:
            self._open_folder()
            checkpoint.save(self._folder.checkpoints, self.progress, self._folder.fingerprint)

    def _open_folder(self) -> None:
        if self._folder is not None and not self._folder.opened:
            self._folder.open(self.config())

    def _record(self, found: list[Line]) -> None:
        if self._folder is not None:
            self._folder.add(found)
        self.lines += found

    def _metrics_size(self) -> int:
        return 0 if self._folder is None else self._folder.size

    def save_interrupted(self) -> str:
        """Save what there is; the sentence that says how to go on."""
        if self._folder is None:
            return "interrupted; the run has no folder, so nothing was saved"
        self.lines = self._folder.cut(self.progress.metrics)
        self.save()
        return f"interrupted; continue with: {files.resuming(self._folder.path)}"

    def finish(self) -> None:
        """Write the selected model and what clients keep."""
        if self._folder is None:
            return
        model, kept = self.selected
        personal = {} if self._elsewhere else kept.touched  # what sites keep they have saved
        about = {"method": self.method.name, "model": self.spec.name}
        self._folder.finish(model, personal, about)

    # -- beginning and continuing --------------------------------------------------------------

    def _beginning(self) -> Progress:
        server = aggregate.begin(self.plan)
        own = aggregate.begin_client(self.plan, server.model)
        kept = Kept(self.federation.names, handle(0) if self._elsewhere else own)
        return checkpoint.ordered(Progress(0, 0, 0, server, kept))

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        federation: Federation | None = None,
        model: Any = None,
        method: Method | Composed | None = None,
        **options: Any,
    ) -> Run:
        """The run saved in a folder, ready to play on, from its own configuration.

        What the configuration cannot rebuild (data, a model or a method that live in Python) is
        given here again. `options` are `say`, `warn`, and `workers`, which changes no result.
        """
        from fedshift.resume import rebuild

        out = Path(folder)
        run = rebuild(cls, out, federation, model, method, options)
        home = run._folder
        assert home is not None
        home.reopen()
        saved = checkpoint.load(home.checkpoints, home.fingerprint)
        if saved is not None:
            checkpoint.check(home.checkpoints, saved, run.progress)
            run.progress = _on_device(saved, run.device)
            run._warned = []  # what was warned of at the start stands in the first round's line
            run._recount()
        run.lines = home.cut(run.progress.metrics)
        return run

    def _start_engine(self) -> Engine:
        if self._elsewhere:
            from fedshift.engines.flower.local import start

            return start(self)
        if self.workers > 1:
            from fedshift.engines.workers import Workers

            return Workers(
                self.plan, self.federation, self.workers, self.spec, self.dtype, self.seed
            )
        engine = choice.start(self.plan, self.federation, self.engine_name, self.chunk)
        clients = self.protocol.participants(len(self.federation.names))
        if isinstance(engine, Stacked) and not self.chunk and engine.chunk < clients:
            self._say(
                f"the memory of {self.device} is reckoned to hold {engine.chunk} clients at once: "
                f"the {clients} of a round go in parts (--chunk says otherwise)"
            )
        return engine

    # -- privacy -------------------------------------------------------------------------------

    def _check_privacy(self) -> ledger.Ledger:
        """Refuse what privacy cannot cover; the account of what it costs."""
        privacy = self.plan.privacy
        if privacy is None:
            return ledger.Ledger()
        from fedshift import protectable
        from fedshift.engines.flower.declared import Declared

        ledger.check_installed(privacy)
        protectable.check(self.plan)
        sample = self.federation.clients[0].train.x
        declared = Declared(self.plan, tuple(sample.shape[1:]), sample.dtype)
        jobs = [self._jobs(stage, self.progress)[0] for stage in self.stages]
        protectable.check_uploads(self.plan, declared, self.progress.server, jobs)
        written = self.out is not None and privacy.source == "system"
        return ledger.Ledger(self.out / "releases.json" if written and self.out else None)

    @property
    def spent(self) -> Line:
        """What privacy has cost the client that took part most often: epsilon, at delta."""
        privacy = self.plan.privacy
        return {} if privacy is None else ledger.cost(privacy, self._ledger.most)

    def _leaves(self, stage: Stage) -> bool:
        """Whether clients let anything leave in a round of a stage."""
        return self.plan.privacy is not None and (
            stage.program == "train" or self.method.has("report")
        )

    def _recount(self) -> None:
        """The account of rounds that an earlier process played, where none was written down."""
        privacy, now = self.plan.privacy, self.progress
        if privacy is None or privacy.source == "system":
            return
        for k, stage in enumerate(self.stages[: now.stage + 1]):
            for round in range(stage.rounds if k < now.stage else now.round):
                if self._leaves(stage):
                    self._ledger.note(self._participants(stage, round))

    def _rebuildable(self) -> bool:
        return self.spec.rebuildable and all(methods.spec_of(p) for p in self.method.parts)


def _composed(method: Method | Composed | str) -> Composed:
    if isinstance(method, str):
        return methods.make(method)
    return Composed.of(method)


def _losses(result: Result) -> dict[str, dict[str, float]]:
    """Each client's mean loss terms."""
    columns = {n: t.detach().cpu().tolist() for n, t in result.losses.items()}
    return {c: {n: v[k] for n, v in columns.items()} for k, c in enumerate(result.clients)}


def _on_device(progress: Progress, device: torch.device) -> Progress:
    def move(tensors: Mapping[str, Tensor]) -> Tree:
        return {n: t.to(device) for n, t in tensors.items()}

    server = Server(
        move(progress.server.model),
        {m: State(move(s.tensors), s.numbers) for m, s in progress.server.methods.items()},
    )

    def each(kept: Kept) -> Kept:
        touched = {c: move(tree) for c, tree in kept.touched.items()}
        return Kept(kept, move(kept.initial)).updated(touched)

    best = progress.best
    if best is not None:
        best = dataclasses.replace(best, model=move(best.model), kept=each(best.kept))
    return dataclasses.replace(progress, server=server, kept=each(progress.kept), best=best)
