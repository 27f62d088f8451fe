"""Studies as jobs of a Ray cluster: submitted once, watched, stopped.

A job is `nbsr run` on the cluster's head, in a copy of the project. Its id follows from what the study says and the
code that runs it, so the cluster itself knows whether it has the study already: nobody has to remember anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shlex
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from nbsr_core.errors import InputError, NbsrError
from nbsr_platform.base.credentials import masked, secrets_in
from nbsr_platform.cluster.packing import Selection, select
from nbsr_platform.study.problems import did_you_mean
from nbsr_platform.study.study import Collection, Study

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

State = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"]
UNDER_WAY = ("PENDING", "RUNNING")
EXPECTED = "the address of the cluster's dashboard, such as http://127.0.0.1:8265"
# Whoever set these wants them to go before what Ray is told; we were told by --cluster.
OVERRIDING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
# Each of these sets its own level when it is imported.
SPEAKERS = ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk", "ray._private.runtime_env")
STUDY_KEY, STUDY_NAME = "nbsr.key", "nbsr.study"
PATIENCE, POLL_SECONDS = 10.0, 1.0
PROGRESS = re.compile(r"^.*: \d+/\d+ trials.*$", re.MULTILINE)


class ClusterError(NbsrError, RuntimeError):
    """The cluster refused, or was lost."""


@dataclass(frozen=True)
class Job:
    """One submission of a study.

    Attributes:
        id: what `nbsr logs`, `nbsr status` and `nbsr stop` are given.
        started, ended: seconds since 1970, None before.
        message: what Ray says of it.
    """

    id: str
    study: str
    key: str
    state: State
    started: float | None
    ended: float | None
    message: str

    @property
    def under_way(self) -> bool:
        return self.state in UNDER_WAY

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else (self.ended or time.time()) - self.started

    @property
    def attempt(self) -> int:
        """Counts submissions of the same study: `...-2` goes on after the first one failed."""
        return int(self.id.removeprefix(base_id(self.study, self.key)).removeprefix("-") or 1)


@dataclass(frozen=True)
class Submission:
    """What became of `Cluster.submit`; `fresh` where a new job was started."""

    job: Job
    fresh: bool


def base_id(study: str, key: str) -> str:
    return f"nbsr-{study}-{key}"


class Cluster:
    """A Ray cluster as one sees it from outside, through its dashboard.

    Args:
        url: address of the dashboard. The token, where one is asked for, is found by Ray itself: RAY_AUTH_MODE=token
            and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        with _translated(self.url), _as_told():
            from ray.job_submission import JobSubmissionClient

            for name in SPEAKERS:
                logging.getLogger(name).setLevel(logging.ERROR)
            self.client: JobSubmissionClient = JobSubmissionClient(self.url)
            self.client.list_jobs()  # says at once if we may not

    def submit(
        self,
        what: Study | Collection,
        overrides: Sequence[str] = (),
        *,
        tracking_uri: str | None = None,
        storage: str | None = None,
        selection: Selection | None = None,
        again: bool = False,
    ) -> Submission:
        """Start the study on the cluster, unless it is there already: running, or done.

        Args:
            what: a study or collection that was read from a file.
            overrides: those it was read with; they travel along.
            tracking_uri: MLflow's address as the cluster sees it; what NBSR_TRACKING says there by default.
            storage: database for searches; what NBSR_STORAGE says there by default.
            selection: what is sent along; what `packing.select` finds by default.
            again: run even if it is done; trials that are in the cluster's store are reused.
        """
        refuse_passwords(tracking_uri, storage)
        selection = select(what) if selection is None else selection
        key = submission_key(what)
        earlier = self._submissions(what.name, key)
        if earlier and (earlier[-1].under_way or (earlier[-1].state == "SUCCEEDED" and not again)):
            return Submission(earlier[-1], fresh=False)
        attempt = earlier[-1].attempt + 1 if earlier else 1
        name = base_id(what.name, key) + (f"-{attempt}" if attempt > 1 else "")
        with tempfile.TemporaryDirectory(prefix="nbsr-submit-") as folder:
            selection.write(Path(folder))
            try:
                with _translated(self.url):
                    self.client.submit_job(
                        entrypoint=entrypoint(selection.study, overrides, tracking_uri, storage),
                        submission_id=name,
                        runtime_env={"working_dir": folder},
                        metadata={STUDY_NAME: what.name, STUDY_KEY: key},
                    )
            except ClusterError:
                # Somebody else was quicker with the same study: then it is there, and that is what was wanted.
                if not any(job.id == name for job in self._submissions(what.name, key)):
                    raise
                return Submission(self.job(name), fresh=False)
        return Submission(self.job(name), fresh=True)

    def jobs(self) -> list[Job]:
        """Our jobs that the cluster remembers, oldest first."""
        with _translated(self.url):
            found = [_job(details) for details in self.client.list_jobs()]
        return sorted((job for job in found if job is not None), key=lambda job: (job.started or 0.0, job.id))

    def job(self, name: str) -> Job:
        """A job by its id, or the newest one of a study by the study's name."""
        known = self.jobs()
        found = [job for job in known if job.id == name] or [job for job in known if job.study == name]
        if not found:
            ids = [job.id for job in known]
            hint = did_you_mean(name, ids)
            has = f"; it has {', '.join(ids)}" if ids else "; it has none"
            raise InputError(f"no job {name!r} on {self.url}{has}{f' ({hint})' if hint else ''}")
        return found[-1]

    def logs(self, name: str) -> str:
        """What the job has said so far."""
        with _translated(self.url):
            return str(self.client.get_job_logs(self.job(name).id))

    def follow(self, name: str) -> Iterator[str]:
        """What the job says, as it says it, until it ends."""
        job = self.job(name)
        loop, stream = asyncio.new_event_loop(), self.client.tail_job_logs(job.id)
        try:
            while True:
                with _translated(self.url):
                    try:
                        text = loop.run_until_complete(anext(stream))
                    except StopAsyncIteration:
                        return
                yield text
        finally:
            loop.run_until_complete(stream.aclose())
            loop.close()

    def stop(self, name: str) -> Job:
        """Ask a job to end and wait until it has; what is done is kept. One that has ended is left as it is."""
        job = self.job(name)
        if job.under_way:
            with _translated(self.url):
                self.client.stop_job(job.id)
        return self.wait(job.id)

    def wait(self, name: str) -> Job:
        """The job when it has ended."""
        while (job := self.job(name)).under_way:
            time.sleep(POLL_SECONDS)
        return job

    def progress(self, name: str) -> str:
        """The last line in which the study says how far it is; empty before the first."""
        lines = PROGRESS.findall(self.logs(name))
        return str(lines[-1]) if lines else ""

    def _submissions(self, study: str, key: str) -> list[Job]:
        mine = [job for job in self.jobs() if (job.study, job.key) == (study, key)]
        return sorted(mine, key=lambda job: job.attempt)


def submission_key(what: Study | Collection) -> str:
    """What makes a submission the same: all that the study says but where it runs, and the code that runs it.

    The data is not looked at: it may only be on the cluster. Where it changed there, submit with `again`.
    """
    from nbsr_platform.trials.keys import canonical, study_key

    members = what.studies
    said = [{name: value for name, value in study.to_dict().items() if name != "resources"} for study in members]
    # A search that grows is the same study, but another submission.
    keys = [study_key(study, "") + canonical(words) for study, words in zip(members, said, strict=True)]
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:12]


def entrypoint(study: str, overrides: Sequence[str], tracking_uri: str | None, storage: str | None) -> str:
    """The job's command. Results go where the cluster keeps them, never into the copy of the project.

    NBSR_PYTHON, where the head has it in its environment, is the interpreter that Ray itself runs in.
    """
    given = [f"./{study}", *(part for text in overrides for part in ("--set", text))]
    given += ["--tracking", tracking_uri] if tracking_uri else []
    given += ["--storage", storage] if storage else []
    start = '"${NBSR_PYTHON:-python}" -m nbsr_platform.cli run --address auto --home "${NBSR_HOME:-$HOME/.nbsr}"'
    return f"{start} {shlex.join(given)}"


def refuse_passwords(tracking_uri: str | None, storage: str | None) -> None:
    """A job's command can be read by all who may list jobs, and stands in Ray's logs."""
    for option, variable, uri in (
        ("--tracking", "NBSR_TRACKING", tracking_uri),
        ("--storage", "NBSR_STORAGE", storage),
    ):
        if uri is not None and secrets_in(uri):
            raise InputError(
                f"{option} {masked(uri)}: a password would be readable for everybody who may list jobs; put the "
                f"address into {variable} in the environment of the cluster's head instead, or the password into its "
                "PGPASSFILE"
            )


def _job(details: Any) -> Job | None:
    """A job of ours, None for one of somebody else."""
    metadata = details.metadata or {}
    if details.submission_id is None or STUDY_NAME not in metadata:
        return None
    started, ended = ((time / 1000 if time else None) for time in (details.start_time, details.end_time))
    state: Any = str(details.status.value)
    key = metadata.get(STUDY_KEY, "")
    return Job(details.submission_id, metadata[STUDY_NAME], key, state, started, ended, details.message or "")


def _checked(url: str) -> str:
    """The URL, if somebody listens there: Ray would wait for minutes, or start something of its own."""
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port or (443 if address.scheme == "https" else 80)
    except ValueError as error:
        raise InputError(f"--cluster {masked(url)!r}: {error}; give {EXPECTED}") from None
    if address.scheme not in ("http", "https") or not host:
        raise InputError(f"--cluster {masked(url)!r} is no web address; give {EXPECTED}")
    if address.username or address.password:
        raise InputError(f"--cluster {masked(url)!r}: no names or passwords here; Ray reads RAY_AUTH_TOKEN_PATH")
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ClusterError(f"no cluster at {url}: {reason}; is it up, and is that {EXPECTED}?") from None
    return url.rstrip("/")


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Ray's errors as ours: what a cluster may answer is no bug of the reader's."""
    import requests
    from ray.exceptions import RayError

    try:
        yield
    except NbsrError:
        raise
    except (RayError, RuntimeError, OSError, ValueError, KeyError, requests.RequestException) as error:
        text = " ".join(str(error).split())
        if re.search(r"\b40[13]\b|[Aa]uthenticat|[Uu]nauthori[sz]ed|token", text):
            raise ClusterError(
                f"{url} refuses us: it wants its token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a file "
                "that holds it"
            ) from None
        raise ClusterError(f"{url}: {text[:300] or type(error).__name__}") from None


@contextmanager
def _as_told() -> Iterator[None]:
    before = {name: os.environ.pop(name) for name in OVERRIDING if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
