"""Finds secrets in text: a table of patterns, one row for each form in which secrets are written.

Almost all texts are harmless and short. One search for the `triggers` of all rows shows that a text has none of them, which takes less than
a microsecond for an id. Only a text with a trigger is searched row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

REDACTED: Final = "[redacted]"

_SEPARATOR: Final = r"\\*[\"']?\s{0,8}(?:[=:]|%3[ad])\s{0,8}"
"""Between a name and its value: `=` or `:`, after the closing quote of the name, which may be escaped."""
_PLACEHOLDER: Final = (
    r"(?!(?:(?:bearer|basic|token)(?:\s+|%20))?(?:none|null|true|false|str|bytes"
    r"|`|%s|\.\.\.|…|\*+|(?-i:\$\{?[A-Z][A-Z_]*\}?)|<[\w -]{0,64}>)(?:[\s,;)\]}\"'`\\]|$))"
)
"""Values that stand for a secret and are none: `None`, `...`, `***`, `$TOKEN`, `<your key>`."""
_PROSE: Final = r"(?!(?-i:(?<=: )[a-z]+(?: [a-z]+){3}))"
"""A sentence after a colon, as in "it needs no password: everybody on this machine can use it"."""
_QUOTED: Final = (
    r"(?P<quote>[\"'])(?![,.;:)]?(?:\s|$))(?:\\.|(?!(?P=quote)).)+"  # "a value, with \" inside"
    r"|(?P<escaped>\\{1,8}[\"'])(?:(?:\\\\){1,4}(?P=escaped)|(?!(?P=escaped)).)+"  # the same in JSON within JSON
)
_PLAIN: Final = r"(?:[^\s\"',;&]|[,;&](?!\s|[\w. -]{1,64}=|$)|[\"'](?=\w))+"
"""A value without quotes. A comma, semicolon, ampersand or quote in the middle belongs to it, unless another `name=` follows."""
_VALUE: Final = rf"{_PLACEHOLDER}{_PROSE}(?:{_QUOTED}|(?:(?:bearer|basic|token)\s+)?{_PLAIN})"

_KEY_KINDS: Final = ("api", "access", "account", "private", "encryption", "signing", "master", "shared", "auth", "service", "project")
_TOKEN: Final = r"(?<!(?:pad|eos|bos|unk|cls|sep|max|per)[_-])token"  # noqa: S105 - a pattern
"""Not the tokens of a language model."""
_NAMES: Final = rf"passw(?:or)?d|passwort|pwd|passphrase|secret|{_TOKEN}|(?:{'|'.join(_KEY_KINDS)})[_-]?key|credentials?"


class LazyPattern(NamedTuple):
    """A regular expression that is compiled when it is first used: compiling all takes 8 ms, and most programs need none."""

    source: str
    flags: int = 0

    @property
    def compiled(self) -> re.Pattern[str]:
        return _compile(*self)


_compile: Final = lru_cache(maxsize=None)(re.compile)


class Pattern(NamedTuple):
    """One form of secrets. Of a match, the groups `keep`, `quote`, `escaped` and `after` stay in the text; the rest is replaced."""

    name: str
    triggers: tuple[str, ...]
    """Every match contains one of these, in lower case."""
    pattern: LazyPattern
    check: Callable[[str], bool] | None = None
    """Returns whether a match is a secret, if the pattern alone cannot tell."""

    def replace(self, match: re.Match[str]) -> str:
        """Return what a match becomes."""
        groups = match.groupdict()
        unchanged = groups.get("keep") or ""
        if self.check is not None and not self.check(match[0][len(unchanged) :]):
            return match[0]
        return f"{unchanged}{groups.get('quote') or groups.get('escaped') or ''}{REDACTED}{groups.get('after') or ''}"


def looks_random(text: str) -> bool:
    """Return whether part of the text looks generated: letters and digits in a row that are not a word, a number or a date."""
    for run in _RUNS.findall(text):
        changes = sum(first.isdigit() != second.isdigit() or first.islower() < second.islower() for first, second in pairwise(run))
        if changes > 1 or (changes and len(run) >= 16):
            return True
    return False


def _looks_encoded(text: str) -> bool:
    return looks_random(text.replace("+", "").replace("/", ""))


def _is_userinfo(text: str) -> bool:
    """Return whether the part of a URL before the host has a password, or is a token. A user alone is not secret."""
    return ":" in text or len(text) > 32 or looks_random(text)


_RUNS: Final = re.compile(r"[A-Za-z0-9]{8,}")


def _prefixed(name: str, prefixes: str, body: str, triggers: tuple[str, ...], check: Callable[[str], bool] | None = None) -> Pattern:
    """Return the row for keys that start with a telling prefix. Upper and lower case matter."""
    return Pattern(name, triggers, LazyPattern(rf"(?<![A-Za-z0-9])(?:{prefixes}){body}[\w-]*"), check)


def _any_case(pattern: str) -> LazyPattern:
    return LazyPattern(pattern, re.IGNORECASE | re.DOTALL)


PATTERNS: Final = (
    # The password may contain `/` and `@`. A port and a path before `/@`, as in http://host:80/@user, are no password.
    Pattern(
        "url", ("@",),
        _any_case(r"(?P<keep>://)(?:[^\s/:@?#]{0,512}:(?!\d{2,5}(?:/[^\s@]*)?/@)[^\s\"'<>]{0,512}|[^/\s]{1,512})(?P<after>@)"),
        _is_userinfo,
    ),
    Pattern(
        "pem", ("private key",),
        _any_case(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)"),
    ),
    # The whole header: a scheme and a token, or parameters such as those of Digest and AWS4-HMAC-SHA256.
    Pattern(
        "authorization", ("authorization",),
        _any_case(
            rf"(?P<keep>authorization{_SEPARATOR}){_PLACEHOLDER}(?!\{{)"
            rf"(?:{_QUOTED}|(?:[a-z][\w-]*[ \t]+)?(?:\"[^\"]*\"|[^\s\"',])+(?:,[ \t]*[\w-]+=(?:\"[^\"]*\"|[^\s,\"'])+)*)"
        ),
    ),
    Pattern(
        "cookie", ("cookie",),
        _any_case(rf"(?P<keep>cookie{_SEPARATOR}){_PLACEHOLDER}(?:{_QUOTED}|[^\s;,\"']+(?:;[ \t]*[^\s;,\"']+)*)"),
    ),
    Pattern(
        "assignment", ("passw", "pwd", "passphrase", "secret", "token", "credential", "key"),
        _any_case(rf"(?P<keep>(?:{_NAMES})(?:[_-](?:key|value|base|base64|b64|hash))*{_SEPARATOR}){_VALUE}"),
    ),
    # An option of a command, also in the list of its arguments.
    Pattern(
        "option", ("--",), _any_case(rf"(?P<keep>(?<![\w-])--[\w-]{{0,40}}(?:{_NAMES})(?:\s{{1,8}}|[\"'],\s{{0,8}}))(?!-){_VALUE}")
    ),
    # Any other variable FOO_KEY: only if the value looks generated, because that of CACHE_KEY=users is not secret.
    Pattern(
        "variable", ("_key",),
        LazyPattern(rf"(?P<keep>(?<![A-Za-z0-9])[A-Z][A-Z0-9_]{{0,60}}_KEY{_SEPARATOR}[\"']?)[\w+/=.~-]{{16,}}"), looks_random,
    ),
    Pattern(
        "signature", ("signature", "sig=", "sig%3"), _any_case(rf"(?P<keep>(?:signature|\bsig){_SEPARATOR}\\*[\"']?)[\w+/%=.~-]{{8,}}")
    ),
    Pattern("bearer", ("bearer",), _any_case(r"(?P<keep>\bbearer\s{1,8})(?=[\w.~+/-]*\d)[\w.~+/-]{8,}=*")),
    Pattern("basic", ("basic",), LazyPattern(r"(?P<keep>\b[Bb]asic\s{1,8})[A-Za-z0-9+/]{12,}={0,2}"), _looks_encoded),
    Pattern("jwt", ("eyj",), LazyPattern(r"(?<![A-Za-z0-9])eyJ[\w-]{8,1000}(?:\.[\w-]*){1,4}")),
    Pattern(
        "webhook", ("hooks.slack", "api/webhooks/"),
        _any_case(r"(?P<keep>hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/)[\w/-]{16,}"),
    ),
    # Keys that start with a telling prefix. Those whose keys may contain `-` and `_`, and thus by chance another prefix, come first.
    _prefixed("sendgrid", r"SG\.", r"[\w-]{16,}\.[\w-]{16,}", ("sg.",)),
    _prefixed("google", r"AIza|ya29\.|GOCSPX-|1//0", r"[\w-]{16,}", ("aiza", "ya29.", "gocspx-", "1//0")),
    _prefixed(
        "gitlab", "gl(?:pat|dt|rt|ptt|cbt|ft|agent|oas)-", r"[\w.-]{16,}",
        ("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glagent-", "gloas-"),
    ),
    _prefixed("slack", "xox[a-z]-|xapp-", r"[\w-]{10,}", ("xox", "xapp-")),
    _prefixed("vault", r"hv[sb]\.", r"[\w-]{24,}", ("hvs.", "hvb.")),
    _prefixed("npm, docker, pypi", "npm_(?=[A-Za-z0-9]{24})|dckr_pat_|pypi-AgE", r"[\w-]{16,}", ("npm_", "dckr_pat_", "pypi-age")),
    _prefixed("openai, anthropic, stripe", "[spr]k[-_]", r"[\w-]{16,}", ("sk-", "sk_", "pk-", "pk_", "rk-", "rk_"), looks_random),
    _prefixed("github", "gh[pousr]_|github_pat_", r"\w{16,}", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_")),
    _prefixed("aws", "AKIA|ASIA|ABIA|ACCA", "[A-Z0-9]{12,}", ("akia", "asia", "abia", "acca")),
    _prefixed("huggingface", "hf_|api_org_", "[A-Za-z0-9]{16,}", ("hf_", "api_org_")),
    _prefixed(
        "digitalocean, databricks, shopify", "do[opr]_v1_|dapi|shp(?:at|ss|ca|pa)_", "[0-9a-f]{32,}",
        ("_v1_", "dapi", "shpat_", "shpss_", "shpca_", "shppa_"),
    ),
    _prefixed("age", "AGE-SECRET-KEY-1", "[A-Z0-9]{16,}", ("age-secret-key-1",)),
    _prefixed(
        "services", "gsk_|xai-|pplx-|r8_|tvly-(?:dev-)?|lsv2_[ps][tk]_|whsec_|lin_api_|ntn_|glsa_|glc_|sbp_",
        r"[A-Za-z0-9]{20,}[\w+/=-]*",
        ("gsk_", "xai-", "pplx-", "r8_", "tvly-", "lsv2_", "whsec_", "lin_api_", "ntn_", "glsa_", "glc_", "sbp_"),
    ),
)  # fmt: skip

SECRET_NAME: Final = re.compile(
    rf"passw|passphrase|(?:^|[._-])pwd$|secret|{_TOKEN}(?!iz)|(?:{'|'.join(_KEY_KINDS)})[_-]?key|authorization|credential|cookie",
    re.IGNORECASE,
)
"""Names of attributes and headers whose values are secret."""


def _trie(words: set[str]) -> str:
    """Return a pattern for any of the words that shares their beginnings: half as many steps as a plain alternation."""
    if "" in words:
        return ""
    heads = sorted({word[0] for word in words})
    branches = [re.escape(head) + _trie({word[1:] for word in words if word[0] == head}) for head in heads]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


_find_trigger: Final = re.compile(_trie({trigger for row in PATTERNS for trigger in row.triggers})).search


def redact_value(text: str) -> str:
    """Return a value for an error message: without secrets, and nothing of it if it looks random."""
    return REDACTED if looks_random(text) else redact(text)


def redact(text: str) -> str:
    """Return the text with every secret replaced. Redacting the result again does not change it."""
    lower = text.lower()
    if _find_trigger(lower) is None:
        return text
    for row in PATTERNS:
        for trigger in row.triggers:
            if trigger in lower:
                text = row.pattern.compiled.sub(row.replace, text)
                break
    return text
