"""The server's half: an engine whose clients are sites, reached by whatever carries packets.

A round is one exchange: each site gets the model and its payload, first scores the model that it
got (those are the scores of the round before), then trains. Answers are compared with what the
method declares before anything in them becomes a tensor, and taken in the order of sites. Sites
that are late, gone, failing or sending something else are left out of the round, and named.

What a site keeps never comes here. In its place stands the number of the round after which it was
kept, so that checkpoints and the choice of a best round need not know where it lies.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor

from fedshift.engines.flower import codec
from fedshift.engines.flower.codec import ECHO, Message, Packet, Rejected
from fedshift.engines.flower.declared import Declared, Expected
from fedshift.engines.flower.handouts import Handed, Handouts, numbers_as_tensors
from fedshift.engines.flower.secagg.layout import Layout, layout
from fedshift.engines.flower.secagg.tally import Tally, offer_of
from fedshift.engines.flower.secagg.terms import Secure
from fedshift.errors import BadRun
from fedshift.evaluate import Score
from fedshift.method import Stage, State
from fedshift.plan import Plan
from fedshift.tree import Tree, pick, stack, with_prefix
from fedshift.trip import Job, Result

HANDLE = "site/state"  # the number of rounds after which a site kept what counts
SCORE = Stage("score", 1, "score", everyone=True)  # a site that is only asked for scores
_MOST_SAMPLES = 1 << 40
_TERMS = 100  # loss terms that a method may have


class Carrier(Interface):
    """What takes packets to sites and brings answers back."""

    def ask(
        self, packets: Mapping[str, Packet], seconds: float
    ) -> tuple[dict[str, Packet], dict[str, str]]:
        """The answers that came in time, and why the others did not."""
        ...

    def close(self) -> None:
        """Let sites go."""
        ...


@dataclasses.dataclass
class Answers(Result):
    """A result of sites.

    `missing` says why a site's trip does not count, `samples` how many training samples sites have,
    `scores` are of the model that was sent, `notes` what else is odd; `sent` and `came` are bytes.
    """

    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    scores: list[Score] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    sent: dict[str, int] = dataclasses.field(default_factory=dict)
    came: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Answer:
    """One site's answer, checked."""

    samples: int
    tensors: Tree
    losses: Mapping[str, float]
    seconds: float
    score: Score | None
    anew: bool
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Remote:
    """Plays rounds with sites.

    Args:
        plan: what is the same for all trips.
        config: the run's configuration, from which sites rebuild it.
        carrier: what reaches the sites.
        declared: what they may upload.
        run: the run's identity, under which sites keep their state.
        samples: how many training samples each site has said that it has.
        min_sites: fewer answers than this stop the run.
        seconds: how long a round may take.
        folder: where hand-outs are kept, so that they can be sent again.
        secure: uploads come as sums alone (None: each site's comes by itself).
    """

    name = "flower"

    def __init__(
        self,
        plan: Plan,
        config: Mapping[str, Any],
        carrier: Carrier,
        declared: Declared,
        *,
        run: str,
        samples: Mapping[str, int],
        min_sites: int = 1,
        seconds: float = 600.0,
        folder: Path | None = None,
        secure: Secure | None = None,
    ) -> None:
        self._secure = secure
        self._plan = plan
        self._config = dict(config)
        self._carrier = carrier
        self._declared = declared
        self._run = run
        self._known = dict(samples)
        self._min_sites = min_sites
        self._seconds = seconds
        self._first: dict[str, int] = {}
        rounds = 0
        for stage in plan.method.stages(plan.protocol):
            self._first[stage.name] = rounds
            rounds += stage.rounds
        self._rounds = rounds
        self._handouts = Handouts(folder)

    def play(self, jobs: Sequence[Job]) -> Result:
        """Play the trips of a round, without scores."""
        return self.exchange(jobs)

    def close(self) -> None:
        """Let the sites go."""
        self._carrier.close()

    # -- an exchange ---------------------------------------------------------------------------

    def exchange(
        self,
        jobs: Sequence[Job],
        watching: Sequence[Job] = (),
        score: bool = False,
        best: Mapping[str, Tree] | None = None,
        final: bool = False,
    ) -> Answers:
        """Ask sites for their trips, and `watching` ones for nothing but scores.

        `score` asks all for scores of the model that is sent; `best` are the handles of the best
        round so far, whose state sites must go on holding; `final` says that what is sent is what
        the run ended with.
        """
        number = self._first[jobs[0].stage.name] + jobs[0].round if jobs else self._rounds
        self._handouts.note(number, jobs)
        wanted = self._expected(jobs, number)
        whole = self._layout(wanted)
        asked: dict[str, Any] = {
            "kind": "trip",
            "run": self._run,
            "config": self._config,
            "exchange": number,
            "token": secrets.token_hex(8),
            "score": score,
            "final": final,
            "seconds": self._seconds,
        }
        if whole is not None:
            asked["secure"] = self._terms(len(jobs))
        packets = {j.client: self._question(asked, j, best or {}) for j in (*jobs, *watching)}
        back, missing = self._ask(asked, [*jobs, *watching], packets, best or {})
        good: dict[str, _Answer] = {}
        for job in (*jobs, *watching):
            nothing = job.stage is SCORE
            try:
                if job.client in back:
                    form = (Expected({}, {}), None) if nothing else (wanted, whole)
                    good[job.client] = self._checked(job, back[job.client], *form, asked)
            except Rejected as error:
                missing[job.client] = str(error)
        there = self._there(jobs, good, missing)
        sent = {client: _bytes(p) for client, p in packets.items()}
        came = {client: _bytes(p) for client, p in back.items()}
        rows: Tree | None = None
        if whole is not None:
            rows, late = self._summed(jobs[0].model, there, good, whole, asked, came)
            missing |= late
            there = self._there(jobs, {c: good[c] for c in there if c not in late}, missing)
        answers = self._answers(there, number, good, wanted, rows)
        answers.missing = {
            j.client: missing[j.client] for j in jobs or watching if j.client in missing
        }
        answers.sent, answers.came = sent, came
        answers.scores = [a.score for a in good.values() if a.score is not None]
        return answers

    def _there(
        self, jobs: Sequence[Job], good: Mapping[str, _Answer], missing: Mapping[str, str]
    ) -> list[str]:
        """The sites whose trips count, which must be enough."""
        there = [j.client for j in jobs if j.client in good]
        if len(there) < min(self._min_sites, len(jobs)):
            self._too_few(jobs, there, missing)
        return there

    def _ask(
        self,
        asked: Mapping[str, Any],
        jobs: Sequence[Job],
        packets: dict[str, Packet],
        best: Mapping[str, Tree],
    ) -> tuple[dict[str, Packet], dict[str, str]]:
        """One exchange, and one more with sites that have lost what stages had handed out."""
        back, missing = self._carrier.ask(packets, self._seconds)
        back = {c: p for c, p in back.items() if c in packets}
        lost = [j for j in jobs if j.client in back and _says_lost(back[j.client])]
        if lost:
            packets |= {j.client: self._question(asked, j, best, all_again=True) for j in lost}
            more, why = self._carrier.ask(
                {j.client: packets[j.client] for j in lost}, self._seconds
            )
            back = {c: p for c, p in back.items() if c not in {j.client for j in lost}} | more
            missing |= why
        return back, {
            **dict.fromkeys((c for c in packets if c not in back), "no answer"),
            **missing,
        }

    def _question(
        self,
        asked: Mapping[str, Any],
        job: Job,
        best: Mapping[str, Tree],
        all_again: bool = False,
    ) -> Packet:
        """What goes to one site."""
        number = asked["exchange"]
        version = version_of(job.kept)
        everything = self._handouts.due(job.client, number, 0)
        lacks = self._handouts.due(job.client, number, version)
        again = everything if all_again else lacks
        if job.stage is SCORE:
            again = []
        head = {
            **asked,
            "work": job.stage is not SCORE,
            "stage": job.stage.name,
            "round": job.round,
            "lr": job.lr,
            "state": version,
            "hold": [version_of(best[job.client])] if job.client in best else [],
            "handouts": 0 if job.stage is SCORE else len(everything),
            "again": [{"stage": h.stage, "round": h.round} for h in again],
        }
        tensors = with_prefix("model", pick(job.model, self._plan.down)) | _as_tensors(job.payload)
        for k, handed in enumerate(again):
            tensors |= with_prefix(f"again/{k}", _as_tensors(handed.payload))
        return codec.encode(Message(head, tensors))

    def _expected(self, jobs: Sequence[Job], number: int) -> Expected:
        if not jobs:
            return Expected({}, {})
        before = [_as_job(jobs[0], h) for h in self._handouts.due(jobs[0].client, number, 0)]
        return self._declared.expected(jobs[0], before)

    # -- answers -------------------------------------------------------------------------------

    def _checked(
        self,
        job: Job,
        packet: Packet,
        wanted: Expected,
        whole: Layout | None,
        asked: Mapping[str, Any],
    ) -> _Answer:
        """An answer, once everything in it is what it must be."""
        head = codec.head_of(packet)
        codec.check_answer(head, "trip", job.client, asked)
        samples = head.get("samples")
        if not isinstance(samples, int) or not 1 <= samples <= _MOST_SAMPLES:
            raise Rejected("its number of samples is none")
        known = self._known.get(job.client)
        if known is not None and samples != known:
            raise Rejected(
                f"it now has {samples} training samples, at first it had {known}: "
                "data stay the same during a run"
            )
        self._known.setdefault(job.client, samples)
        score = _score(job.client, head.get("scores")) if asked["score"] else None
        likes = wanted.tensors
        if whole is not None:
            likes = {n: likes[n] for n in whole.clear}
        return _Answer(
            samples=samples,
            tensors=codec.decode(packet, likes).tensors,
            losses=_losses(head.get("losses", {})),
            seconds=_float(head.get("seconds", 0.0), "seconds"),
            score=score,
            anew=head.get("anew") is True and version_of(job.kept) > 0,
            keys={} if whole is None else offer_of(head, whole.digest),
        )

    def _answers(
        self,
        there: Sequence[str],
        number: int,
        good: Mapping[str, _Answer],
        wanted: Expected,
        rows: Tree | None,
    ) -> Answers:
        """The trips that count, in the order of the jobs; `rows` stand for what was summed."""
        each = [good[client] for client in there]
        plan = self._plan

        def stacked(prefix: str) -> Tree:
            names = [n for n in wanted.tensors if n.startswith(prefix)]
            clear = [n for n in names if rows is None or n not in rows]
            whole = stack([pick(a.tensors, clear) for a in each]) if each else {}
            whole = {n: t.to(plan.device) for n, t in whole.items()} | (rows or {})
            return {n.removeprefix(prefix): whole[n] for n in names if n in whole}

        terms = dict.fromkeys(n for a in each for n in a.losses)
        return Answers(
            clients=list(there),
            model=stacked("model/"),
            extras=stacked("extra/"),
            kinds=dict(wanted.kinds),
            kept=[handle(number + 1) for _ in there],
            losses={
                n: torch.tensor([a.losses.get(n, torch.nan) for a in each], dtype=plan.dtype)
                for n in terms
            },
            seconds=[a.seconds for a in each],
            samples={client: a.samples for client, a in good.items()},
            notes=[
                f"site '{client}' has lost what it kept and begins anew, as if it had not taken "
                "part before: look at its state folder"
                for client, a in good.items()
                if a.anew
            ],
        )

    # -- secure aggregation --------------------------------------------------------------------

    def _layout(self, wanted: Expected) -> Layout | None:
        """What of a round's uploads is summed; None where they are not, or there are none."""
        if self._secure is None:
            return None
        found = layout(self._plan, wanted.tensors, wanted.kinds)
        return found if found.entries else None

    def _terms(self, asked: int) -> dict[str, Any]:
        """What sites must know of the sum."""
        assert self._secure is not None
        secure = self._secure
        return {"clip": secure.clip, "bits": secure.bits, "least": secure.least(asked)}

    def _summed(
        self,
        model: Tree,
        there: Sequence[str],
        good: Mapping[str, _Answer],
        whole: Layout,
        asked: Mapping[str, Any],
        came: dict[str, int],
    ) -> tuple[Tree, dict[str, str]]:
        """What stands for the uploads of those in the sum, and why others are not in it."""
        secure = self._secure
        assert secure is not None
        alike = self._plan.protocol.weights == "uniform"
        weight = {c: 1 if alike else good[c].samples for c in there}

        def ask(
            packets: Mapping[str, Packet],
        ) -> tuple[dict[str, Packet], dict[str, str]]:
            back, missing = self._carrier.ask(packets, self._seconds)
            for client, packet in back.items():
                came[client] = came.get(client, 0) + _bytes(packet)
            return back, missing

        tally = Tally(
            ask=ask,
            asked={n: asked[n] for n in (*ECHO, "seconds")},
            least=asked["secure"]["least"],
            size=whole.size,
            width=secure.width(sum(weight.values())),
        )
        left, sums, missing = tally.sum({c: good[c].keys for c in there})
        weights = [weight[c] for c in there if c in left]
        if sums.size and int(abs(sums).max()) > sum(weights) * secure.largest:
            raise BadRun(
                "the sum of the uploads is out of range, so a site has masked or shared them "
                "falsely: see that all sites run the same version and are honest, and resume"
            )
        rows = whole.rows(sums, model, secure, weights, self._plan.device)
        return dict(rows), missing

    def _too_few(
        self, jobs: Sequence[Job], there: Sequence[str], missing: Mapping[str, str]
    ) -> None:
        reasons = "; ".join(
            f"'{j.client}': {missing[j.client]}" for j in jobs if j.client in missing
        )
        raise BadRun(
            f"{len(there)} of {len(jobs)} sites took part in round {jobs[0].round + 1} of "
            f"'{jobs[0].stage.name}', fewer than the {self._min_sites} that must ({reasons}): "
            "mend them and resume the run, or lower --min-sites"
        )

    # -- the end -------------------------------------------------------------------------------

    def hand_over(self, model: Tree, kept: Mapping[str, Tree]) -> dict[str, str]:
        """Give the sites the models that the run ended with; who did not get them, and why."""
        asked = {
            "kind": "final",
            "run": self._run,
            "config": self._config,
            "exchange": self._rounds + 1,
            "token": secrets.token_hex(8),
            "seconds": self._seconds,
        }
        tensors = with_prefix("model", pick(model, self._plan.down))
        packets = {
            client: codec.encode(Message({**asked, "state": version_of(own)}, tensors))
            for client, own in kept.items()
        }
        back, missing = self._carrier.ask(packets, self._seconds)
        for client, packet in back.items():
            head = codec.head_of(packet)
            if head.get("kind") != "final":
                missing[client] = codec.short(head.get("why", "it answered something else"), 300)
        return missing


def handle(version: int) -> Tree:
    """What stands at the server for the state that a site kept after so many rounds."""
    return {HANDLE: torch.tensor(version)}


def version_of(kept: Mapping[str, Tensor]) -> int:
    """The number of rounds after which a site kept what a handle stands for.

    >>> version_of(handle(3))
    3
    """
    return int(kept[HANDLE]) if HANDLE in kept else 0


def _as_tensors(payload: State) -> Tree:
    return {
        **with_prefix("payload", payload.tensors),
        **with_prefix("number", numbers_as_tensors(payload)),
    }


def _as_job(job: Job, handed: Handed) -> Job:
    stage = Stage(handed.stage, 1, "collect", everyone=True)
    return dataclasses.replace(job, stage=stage, round=handed.round, payload=handed.payload)


def _says_lost(packet: Packet) -> bool:
    try:
        return codec.head_of(packet).get("kind") == "lost"
    except Rejected:
        return False


def _bytes(packet: Packet) -> int:
    return sum(len(p.data) for p in packet.pieces.values())


def _score(client: str, given: Any) -> Score:
    names = ("test", "val", "personal_test", "personal_val")
    if not isinstance(given, dict) or not set(given) <= set(names):
        raise Rejected("its scores are none")
    found = Score(client)
    for name, value in given.items():
        setattr(found, name, None if value is None else _float(value, "scores"))
    return found


def _losses(given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or len(given) > _TERMS or any(len(n) > 100 for n in given):
        raise Rejected("its losses are none")
    return {n: torch.nan if v is None else _float(v, "losses") for n, v in given.items()}


def _float(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        raise Rejected(f"its {what} are no numbers")
    return float(value)
