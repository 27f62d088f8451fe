"""Files that look like secrets, by their name or by what is in them: keys, tokens, passwords.

Better one file too many than one too few: whoever is refused can leave the file at home or give it another name, but
what was sent to a cluster cannot be taken back.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path, PurePosixPath

FOLDERS = ("secret", "secrets", ".ssh", ".aws", ".gnupg", ".kube")
NAMES = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore"),
    *("*.ppk", "*.kdbx", "*.ovpn", "*.tfstate", "*.env", ".env*", "kubeconfig", "*.kubeconfig"),
    *("credentials", "credentials.*", "*[_-]credentials", "*[_-]credentials.*", "client_secret*.json"),
    *("*service-account*.json", "*service_account*.json", ".git-credentials", ".npmrc", ".pypirc", ".dockercfg"),
    *("pgpass", ".pgpass", "pgpass.conf", "pgpassword", "netrc", ".netrc", "_netrc", "htpasswd", ".htpasswd"),
    *(
        f"{start}{word}{end}"
        for word in ("token", "password", "secret")
        for start in ("", "*[_.-]")
        for end in ("", ".txt")
    ),
    *("passwd", "passwords", "passwords.txt", "token.json", "secret.*", "secrets.*"),
)
# Sources and prose are judged by what is in them: `tokens/secret.py` and `secrets.md` are about such things.
SPEAKS = (".py", ".pyi", ".c", ".h", ".md", ".rst", ".html", ".css", ".js", ".pub")
CONTENT = {
    "a private key": rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-\d",
    "the private key of a service account": rb'"private_key"\s*:\s*"',
    "an AWS key": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|aws_secret_access_key\s*[=:]\s*['\"]?[A-Za-z0-9/+]{40}",
    "a GitHub or GitLab token": rb"\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_\w{60}|\bglpat-[\w-]{20}",
    "a Slack token": rb"\bxox[abeprs]-[\w-]{10}",
    "a Google API key": rb"\bAIza[\w-]{35}\b",
    "a Hugging Face token": rb"\bhf_[A-Za-z0-9]{34}\b",
    "an API key": rb"\bsk-(?:ant|proj)-[\w-]{20}|\b[rs]k_live_[A-Za-z0-9]{20}",
}
PATTERN = re.compile(b"|".join(b"(?P<p%d>%s)" % (number, text) for number, text in enumerate(CONTENT.values())))
# Looked for in files of settings alone: elsewhere addresses with passwords are examples.
SETTINGS = (".toml", ".cfg", ".ini", ".conf", ".yaml", ".yml", ".json", ".txt")
ADDRESS = re.compile(rb"://[^/\s:@'\"]+:(?!PASSWORD\b)[^/\s:@'\"${<*]{3,}@")


def giveaway(path: Path, name: str) -> str:
    """Why a file looks like a secret; empty if it does not.

    Args:
        path: the file.
        name: its path below the project, with slashes; links are judged by what they lead to as well.
    """
    for known in dict.fromkeys((PurePosixPath(name), PurePosixPath(path.resolve().name))):
        reason = _by_name(known)
        if reason:
            return reason
    content = path.read_bytes()
    found = PATTERN.search(content)
    if found is not None:
        return f"holds {list(CONTENT)[int(str(found.lastgroup)[1:])]}"
    if path.suffix.lower() in SETTINGS and ADDRESS.search(content):
        return "holds an address with a password"
    return ""


def _by_name(path: PurePosixPath) -> str:
    if path.suffix.lower() in SPEAKS:
        return ""
    name = path.name.lower()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in NAMES):
        return "looks like a secret by its name"
    if any(part.lower() in FOLDERS for part in path.parts[:-1]):
        return "lies in a folder for secrets"
    return ""
