"""Study files and overrides that are broken, out of bounds, or would run somebody's code."""

from __future__ import annotations

from benchmarks.reliability.hostile.case import GOOD, OWNED, SEARCH, Hostile, study

NAME = "name: expected a name of letters, digits, - and _ (100 at most)"
NO_DOMAIN = "domain: must be a subclass of nbsr_core.domains.Domain"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)

STUDIES: tuple[Hostile, ...] = (
    # Files that are no study, or would run code where a careless reader loads them.
    study(
        "a YAML tag that calls a function",
        f"name: !!python/object/apply:os.mknod [{OWNED}]\n",
        "the YAML tag '!!python/object/apply:os.mknod' is not allowed",
    ),
    study(
        "a YAML tag that names a function",
        GOOD + "question: !!python/name:os.system\n",
        "the YAML tag '!!python/name:os.system' is not allowed",
    ),
    study(
        "a YAML tag that imports a module",
        GOOD + "question: !!python/module:antigravity\n",
        "the YAML tag '!!python/module:antigravity' is not allowed",
    ),
    study(
        "a YAML tag of somebody's own", GOOD + "data: !include /etc/passwd\n", "the YAML tag '!include' is not allowed"
    ),
    study("a billion laughs (aliases of aliases)", LAUGHS + GOOD, "more than 20000 values, with aliases written out"),
    study("an alias that contains itself", GOOD + "data: &x {y: *x}\n", "an alias that contains itself"),
    study("a thousand brackets", GOOD + "data: " + "[" * 1000 + "]" * 1000 + "\n", "nested deeper than 40 levels"),
    study("bytes that are no text", b"\xff\xfe\x00name", "s.yaml: is not a text file in UTF-8"),
    study("a NUL character", GOOD + "question: 'a\0b'\n", "special characters are not allowed"),
    study("nothing at all", "", "s.yaml: is empty; a study needs name, domain and models"),
    study("a list", "[1, 2, 3]\n", "s.yaml:1: expected a mapping"),
    study("a single word", "study\n", "s.yaml:1: expected a mapping"),
    study("two documents in one file", GOOD + "---\n" + GOOD, "found another document"),
    study("a key twice", GOOD + "name: other\n", "name: the key stands twice, first in line 1"),
    study("a quote that never ends", "name: 'fine\n", "found unexpected end of stream"),
    study("tabs for spaces", "name: fine\nmodels:\n\tmlp: {}\n", "indent with spaces, not tabs"),
    Hostile("a folder for a file", "validate folder", "folder: is a folder; name a study file in it", {"folder/x": ""}),
    Hostile("a file that is not there", "validate nowhere.yaml", "nowhere.yaml: no such file"),
    Hostile("a file that cannot be read", "validate /proc/self/mem", "/proc/self/mem: cannot be read"),
    # Names that would leave their folder, or be read as something else.
    study("a name that climbs out of the store", GOOD.replace("fine", "../../evil"), NAME),
    study("a name with a slash", GOOD.replace("fine", "a/b"), NAME),
    study("a name with markup", GOOD.replace("fine", "'<script>alert(1)</script>'"), NAME),
    study("a name with a line break", GOOD.replace("fine", '"a\\nb"'), NAME),
    study("a name of 5000 letters", GOOD.replace("fine", "x" * 5000), NAME),
    study("a name that is a number", GOOD.replace("fine", "12"), NAME),
    study("a shell command for a name", GOOD.replace("fine", "'$(touch owned)'"), NAME),
    # Domains: the one door for code, and it takes only domains.
    study("a domain that is a function", GOOD.replace("iris", "os:system"), NO_DOMAIN),
    study("a domain that starts processes", GOOD.replace("iris", "subprocess:Popen"), NO_DOMAIN),
    study("a domain that is not there", GOOD.replace("iris", "nowhere:Domain"), "domain: cannot import 'nowhere'"),
    study("a domain by a path", GOOD.replace("iris", "'../evil:Domain'"), "domain: cannot be used"),
    study("a domain with a dot too many", GOOD.replace("iris", "'.:Domain'"), "domain: cannot be used"),
    study("a domain of a spelling mistake", GOOD.replace("iris", "iriss"), "did you mean 'iris'"),
    study(
        "a domain whose module does not compile",
        GOOD.replace("iris", "broken1:D"),
        "domain: cannot be used: SyntaxError",
        **{"broken1.py": "def ("},
    ),
    study(
        "a domain whose module fails",
        GOOD.replace("iris", "broken2:D"),
        "domain: cannot be used: RuntimeError: no",
        **{"broken2.py": "raise RuntimeError('no')"},
    ),
    study(
        "a domain whose module ends the process",
        GOOD.replace("iris", "broken3:D"),
        "domain: cannot be used: SystemExit: 0",
        **{"broken3.py": "import sys; sys.exit(0)"},
    ),
    # Values out of all bounds.
    study("epochs below zero", GOOD + "training: {epochs: -1}\n", "training.epochs: must be at least 1, got -1"),
    study(
        "epochs without end", GOOD + "training: {epochs: .inf}\n", "training.epochs: expected a whole number, got inf"
    ),
    study(
        "a learning rate that is no number",
        GOOD + "training: {learning_rate: .nan}\n",
        "training.learning_rate: expected a number, got nan",
    ),
    study(
        "text for a number",
        GOOD + "training: {batch_size: '30; rm -rf /'}\n",
        "training.batch_size: expected a whole number",
    ),
    study("no seeds", GOOD + "seeds: 0\n", "seeds: expected a number of seeds (1 to 10000)"),
    study("a million million seeds", GOOD + "seeds: 1000000000000\n", "seeds: expected a number of seeds (1 to 10000)"),
    study(
        "half a worker",
        GOOD + "resources: {workers: 0.5}\n",
        "resources.workers: expected a whole number >= 1, got 0.5",
    ),
    study("a key that nobody knows", GOOD + "modles: {}\n", "modles: unknown key; did you mean 'models'?"),
    study(
        "a space from high to low",
        SEARCH + "{oracle_dim: {int: [9, 3]}}}\n",
        "search.space.oracle_dim.int: low is above high",
    ),
    study("a space over what is not there", SEARCH + "{__class__: {int: [1, 3]}}}\n", "__class__"),
    study(
        "a search for nothing",
        SEARCH.replace("trials: 3", "trials: 0") + "{oracle_dim: {int: [1, 3]}}}\n",
        "search.trials: expected a whole number >= 1, got 0",
    ),
    # Overrides.
    study("an override without a value", GOOD, "--set seeds: expected key=value", "validate s.yaml --set seeds"),
    study("an override without a key", GOOD, "--set =3: expected key=value", "validate s.yaml --set =3"),
    study(
        "an override of Python's own",
        GOOD,
        "models.__class__: expected a name of letters",
        "validate s.yaml --set models.__class__=1",
    ),
    study(
        "an override with a YAML tag",
        GOOD,
        "the YAML tag '!!python/object/new:os.mknod' is not allowed",
        f"validate s.yaml --set 'name=!!python/object/new:os.mknod [{OWNED}]'",
    ),
)
