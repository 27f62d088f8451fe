"""Submissions that would carry secrets, or cannot be packed: refused before any cluster is contacted."""

from __future__ import annotations

import json

from benchmarks.reliability.hostile.case import GOOD, PASSWORD, Hostile, study

SUBMIT = "submit s.yaml --cluster http://127.0.0.1:9"
WORDS = "name: words\ndomain: language\ndata: {{source: file, text: {}}}\nmodels: {{nbsr: {{}}}}\n"
# In two parts: a file with a whole one would itself be refused.
PRIVATE_KEY = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\n"
AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLE"
ACCOUNT = json.dumps({"type": "service_account", "private" + "_key": PASSWORD})


def named(name: str, path: str, says: str, content: str = PASSWORD) -> Hostile:
    """A study that names a file for its text."""
    return study(name, WORDS.format(path), says, SUBMIT, **{path: content})


PACKING: tuple[Hostile, ...] = (
    named("a token sent as a text", "secrets/ray_token", "secrets/ray_token looks like a secret by its name"),
    named("a password sent as a text", "secrets/postgres_password", "--exclude secrets/postgres_password"),
    named("a private key sent as a text", "words.txt", "words.txt holds a private key", PRIVATE_KEY),
    named("a key of one's own sent as a text", ".ssh/id_rsa", ".ssh/id_rsa looks like a secret by its name"),
    named("a file in a folder for keys sent as a text", ".ssh/known", ".ssh/known lies in a folder for secrets"),
    named("settings of an environment sent as a text", "prod.env", "prod.env looks like a secret by its name"),
    named("AWS's file of credentials sent as a text", "aws/credentials", "aws/credentials looks like a secret"),
    named(
        "a service account sent as a text", "account.json", "account.json holds the private key of a service", ACCOUNT
    ),
    study("an AWS key in a study file", f"{GOOD}question: {AWS_KEY}\n", "s.yaml holds an AWS key", SUBMIT),
    study(
        "an AWS key in a module beside the study",
        GOOD,
        "upload.py holds an AWS key",
        SUBMIT,
        **{"upload.py": f"KEY = '{AWS_KEY}'\n"},
    ),
    study("a project that is not there", GOOD, "nowhere is not a folder", f"{SUBMIT} --project nowhere"),
    study(
        "a study outside its project",
        GOOD,
        "so it cannot be sent; name a folder with --project",
        f"{SUBMIT} --project folder",
        **{"folder/x": ""},
    ),
    study(
        "a password in a job's command",
        GOOD,
        "readable for everybody who may list jobs",
        f"{SUBMIT} --storage postgresql://me:{PASSWORD}@127.0.0.1:9/x",
    ),
)
