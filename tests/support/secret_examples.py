"""Examples for every row of the table of secrets. Secrets are generated, because scanners would report literal ones in this file."""

from __future__ import annotations

import os
import random
import string
from typing import NamedTuple

LETTERS = string.ascii_letters + string.digits
BASE64 = LETTERS + "+/"
URL_SAFE = LETTERS + "-_"
CAPITALS = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
PASSWORD = LETTERS + "!#$%^*()_-+/.~"


class Form(NamedTuple):
    """How a secret is written: `{}` stands for random characters."""

    template: str
    alphabet: str = LETTERS
    length: int = 24

    def fill(self, chooser: random.Random) -> tuple[str, list[str]]:
        """Return a text with a new secret, and parts of the secret that must not stay in the text."""
        parts, text = [], self.template
        while "{}" in text:
            ends = [character for character in self.alphabet if character.isalnum()]  # a last dot could also end a sentence
            secret = chooser.choice(ends) + "".join(chooser.choices(self.alphabet, k=self.length - 2)) + chooser.choice(ends)
            text = text.replace("{}", secret, 1)
            parts += [secret[:8], secret[-8:]]
        return text, parts


PEM = "-----BEGIN {0}PRIVATE KEY-----{1}{{}}{1}{{}}{1}-----END {0}PRIVATE KEY-----"

EXAMPLES: dict[str, tuple[list[Form], list[str]]] = {
    "url": (
        [
            Form("postgres://admin:{}@db.example/x", PASSWORD), Form("redis://:{}@cache:6379/0", BASE64), Form("https://{}@github.com/a/b.git"),
            Form("https://user:p@{}@host/path"), Form("mongodb+srv://u:{}/{}@cluster.example/?w=majority", BASE64, 12),
            Form("could not connect to amqp://guest:{}@mq:5672//: timed out", PASSWORD), Form("postgres://u:a@b/{}@db.example/x", BASE64),
        ],
        [
            "postgresql://user@host/database", "https://host/@scope/package", "http://localhost:8080/@scope/package", "s3://bucket/a@b.ckpt",
            "http://[::1]:4318/v1/traces", "git@github.com:a/b.git", "mail me at a@example.com", "redis://127.0.0.1:6379/0",
        ],
    ),
    "pem": (
        [
            Form(PEM.format("", "\n"), BASE64, 64), Form(PEM.format("RSA ", "\n"), BASE64, 64), Form(PEM.format("OPENSSH ", "\\n"), BASE64, 64),
            Form("-----BEGIN EC PRIVATE KEY-----\n{}\n{}", BASE64, 64), Form("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{}\n", BASE64, 64),
        ],
        ["-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "the private key is not readable"],
    ),
    "authorization": (
        [
            Form("Authorization: Bearer {}", URL_SAFE), Form("Authorization: token {}"), Form("authorization=Basic {}==", BASE64),
            Form("Proxy-Authorization: Negotiate {}", BASE64), Form("{'Authorization': 'Bearer {}', 'Accept': '*/*'}"),
            Form('Authorization: Digest username="u", nonce="{}", response="{}"', HEX, 32), Form("authorization=Bearer%20{}"),
            Form("Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/s3/aws4_request, SignedHeaders=host, Signature={}", HEX, 64),
            Form("Authorization: {}", URL_SAFE),
        ],
        ["Authorization: Bearer ...", "authorization: {credentials: ...}", "no authorization header", "authorization=Bearer%20$KEY,a=b"],
    ),
    "cookie": (
        [Form("Cookie: session={}; csrftoken={}"), Form("Set-Cookie: sid={}; Path=/; HttpOnly", URL_SAFE), Form('"cookie": "a={}; b={}"')],
        ["no cookie was sent", "cookie: ..."],
    ),
    "assignment": (
        [
            Form("host=db user=u password={} dbname=x", PASSWORD), Form("Server=db;Pwd={};", LETTERS), Form("PASSWORD: {}"), Form("passphrase={}"),
            Form('{"api_key": "{}"}'), Form("https://x.example/?access_token={}&x=1"), Form("AccountName=a;AccountKey={}==;", BASE64, 86),
            Form("CKPT_ENCRYPTION_KEY={}", URL_SAFE, 43), Form("private_key={}", BASE64), Form('password="{} {}, {}"', LETTERS, 10),
            Form("password='{}, {} and {}'", LETTERS, 10), Form('{\\"password\\": \\"{} {}\\", \\"a\\": 1}'), Form("client-secret: {}"),
            Form('{"a": "{\\"token\\": \\"{}, {}\\"}"}'), Form('password="{}\\"{}"', LETTERS, 12), Form("password={},{}", LETTERS, 12),
            Form("password={}&{}", LETTERS, 12), Form("next=%2Fx%3Ftoken%3D{}"), Form("AWS_SECRET_ACCESS_KEY={}", BASE64, 40),
            Form("SECRET_KEY_BASE={}", HEX, 64), Form("LMNR_PROJECT_API_KEY={}", LETTERS, 64), Form("{'passwd': '{}'}"), Form("token={}", URL_SAFE),
            Form("credentials={}"), Form("db.password = {}"),
        ],
        [
            "tokenizer=bpe", "max_tokens=4096", "pad_token=<pad>", "eos_token: </s>", "password=None", "token=$TOKEN", "password=***",
            "token: <your token>", "it needs no password: everybody on this machine can use it", "secret santa", "primary_key=id", "key=value",
            "config=small", "a token expired", "set `TOKEN=` first", 'a sentence after "password:", and more',
        ],
    ),
    "option": (
        [
            Form("mysql --password {} -h db"), Form("deploy --api-key {}"), Form("run --auth-token '{}'"),
            Form("Command '['psql', '--password', '{}']' returned non-zero exit status 2."),
        ],
        ["--token-count 5", "--password --verbose", "step --interval 60"],
    ),
    "variable": (
        [Form("STORAGE_KEY={}", LETTERS, 32), Form('DATADOG_APP_KEY: "{}"', HEX, 40)],
        ["CACHE_KEY=users", "SORT_KEY=created_at_descending", "partition_key=user"],
    ),
    "signature": (
        [
            Form("https://bucket.example/k?X-Amz-Signature={}&x=1", HEX, 64),
            Form("https://account.blob.example/c?sv=2024-01-01&sig={}%3D", LETTERS, 43),
        ],
        ["signature: (a, b)", "design=2", "config=1"],
    ),
    "bearer": ([Form("bearer 1{}.abc", URL_SAFE), Form("sent Bearer {}7 to the server")], ["bearer authentication failed", "bearer token that"]),
    "basic": ([Form("Basic {}==", BASE64, 40)], ["Basic authentication", "basic internationalization"]),
    "jwt": ([Form("eyJ{}.{}.{}", URL_SAFE), Form("jwt_eyJ{}.{}.", URL_SAFE)], ["eyJ", "heyJude.mp3"]),
    "webhook": ([Form("https://hooks.slack.com/services/T0/B0/{}"), Form("https://discord.com/api/webhooks/1/{}", URL_SAFE)], ["hooks.slack.com"]),
    "sendgrid": ([Form("SG.{}.{}", URL_SAFE, 32)], ["SG.example.com"]),
    "google": (
        [Form("AIza{}", URL_SAFE, 35), Form("ya29.{}", URL_SAFE, 60), Form("GOCSPX-{}", URL_SAFE, 28), Form("1//0{}", URL_SAFE, 60)],
        ["ya29.", "AIzaShort"],
    ),
    "gitlab": ([Form("glpat-{}", URL_SAFE, 20), Form("gldt-{}", URL_SAFE, 20)], ["glpat-", "global-attention-layer-17"]),
    "slack": ([Form("xoxb-123456789012-{}"), Form("xapp-1-A0-{}")], ["xoxo", "xapp-"]),
    "vault": ([Form("hvs.{}", URL_SAFE, 90)], ["hvs.example.com"]),
    "npm, docker, pypi": (
        [Form("npm_{}", LETTERS, 36), Form("dckr_pat_{}", URL_SAFE, 27), Form("pypi-AgEIcHlwaS5vcmc{}", URL_SAFE, 100)],
        ["npm_config_registry_of_the_company", "pypi-publish-workflow-name"],
    ),
    "openai, anthropic, stripe": (
        [Form("sk-{}", LETTERS, 48), Form("sk-proj-{}", URL_SAFE, 64), Form("sk-ant-api03-{}", URL_SAFE, 90), Form("sk_live_{}"), Form("my_rk_test_{}")],
        ["skip-connection-v2-final", "task-0123456789abcdef0", "sk-learn-pipeline-classification", "sk-learn-gradient-boosting-v2"],
    ),
    "github": ([Form("ghp_{}", LETTERS, 36), Form("gho_{}", LETTERS, 36), Form("github_pat_{}_{}", LETTERS, 22)], ["ghp_short", "github_patch_1"]),
    "aws": ([Form("AKIA{}", CAPITALS, 16), Form("ASIA{}", CAPITALS, 16)], ["asia-northeast1-a-bucket", "ASIA-PACIFIC-REGION-1"]),
    "huggingface": ([Form("hf_{}", string.ascii_letters, 34), Form("api_org_{}", string.ascii_letters, 34)], ["hf_hub_download", "hf_transformers"]),
    "digitalocean, databricks, shopify": (
        [Form("dop_v1_{}", HEX, 64), Form("dapi{}", HEX, 32), Form("shpat_{}", HEX, 32)],
        ["encoder_v1_large_with_attention", "dapi"],
    ),
    "age": ([Form("AGE-SECRET-KEY-1{}", CAPITALS, 58)], ["age-secret-key-1"]),
    "services": (
        [Form(prefix + "{}", LETTERS, 40) for prefix in ("gsk_", "xai-", "pplx-", "r8_", "tvly-dev-", "lsv2_pt_", "whsec_", "lin_api_", "glsa_")],
        ["xai-explanations", "tvly-dev-", "r8_model"],
    ),
}  # fmt: skip
"""For each row: forms that are redacted, and texts that stay as they are."""


def new_chooser() -> random.Random:
    """Return a generator with a new seed, or that of CANARY_SEED. The seed is printed, so that a failure can be repeated."""
    seed = int(os.environ.get("CANARY_SEED") or random.SystemRandom().getrandbits(32))
    print(f"CANARY_SEED={seed}")
    return random.Random(seed)
