"""`caldera serve`: a trained model as a web service."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera import serve
from caldera.cli.command import Command, flag, flags
from caldera.cli.model_argument import class_names_of
from caldera.cli.option_types import CountOption, Number
from caldera.cli.prediction_inputs import STRICT
from caldera.errors import ConfigError
from caldera.io.files import read_bounded
from caldera.train.neural_network import load_model

_SHORTEST_TOKEN, _LONGEST_TOKEN = 16, 4096


_LIMITS = serve.Limits()
add_flags = flags(
    flag("model", metavar="FILE.caldera", help="a model that `caldera train` wrote"),
    flag(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 accepts other machines (default: 127.0.0.1)",
    ),
    flag(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another name that requests may be sent to, as a proxy does; may be repeated",
    ),
    flag(
        "--token-file",
        metavar="FILE",
        help="a file with a token that each request has to bring: Authorization: Bearer TOKEN",
    ),
    flag(
        "--keep-formulas",
        action="store_true",
        help="write texts that a spreadsheet takes for formulas as they are, without apostrophes",
    ),
    flag("--port", metavar="N", default="8000", help="0: any free (default: 8000)"),
    flag(
        "--batch-size",
        metavar="N",
        default=str(_LIMITS.batch_size),
        help=f"number of samples computed in one batch (default: {_LIMITS.batch_size})",
    ),
    flag(
        "--max-body",
        metavar="BYTES",
        default=str(_LIMITS.body),
        help=f"largest request (default: {_LIMITS.body})",
    ),
    flag("--strict", action="store_true", help=STRICT),
    flag(
        "--timeout",
        metavar="SECONDS",
        default=f"{_LIMITS.seconds:g}",
        help=f"for a request to come, and for its answer (default: {_LIMITS.seconds:g})",
    ),
)
"""The flags of `serve`."""


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    limits = serve.Limits(
        strict=arguments.strict,
        batch_size=CountOption(1).from_text(arguments.batch_size, "--batch-size"),
        body=CountOption(1).from_text(arguments.max_body, "--max-body"),
        seconds=Number().from_text(arguments.timeout, "--timeout"),
    )
    port = CountOption(0).from_text(arguments.port, "--port")
    model = load_model(arguments.model)
    name = Path(arguments.model).stem

    def ready(address: str) -> None:
        print(f"serving {name} at {address}  (Ctrl-C ends it)", flush=True)

    answered = serve.run(
        model,
        host=arguments.host,
        port=port,
        name=name,
        limits=limits,
        class_names=class_names_of(model, arguments.model),
        allow_hosts=arguments.allow_host,
        token=_token(arguments.token_file),
        keep_formulas=arguments.keep_formulas,
        ready=ready,
    )
    print(f"ended   {answered} requests answered")
    return 0


def _token(path: str | None) -> str:
    """Return the token in a file; "" without a file."""
    if path is None:
        return ""
    token = read_bounded(path, _LONGEST_TOKEN, "--token-file").decode("utf-8", "replace").strip()
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError.build(
            "--token-file",
            expected=f"a token of at least {_SHORTEST_TOKEN} characters in {path}",
            got=f"{len(token)}",
            hint="write one with: openssl rand -hex 32",
        )
    return token


COMMAND = Command(
    name="serve",
    takes="FILE.caldera",
    summary="Serve a trained model as a web service, with a page to try it.",
    examples="""
        caldera serve out/digits.caldera
        caldera serve out/flowers.caldera --host 0.0.0.0 --port 80
    """,
    add_flags=add_flags,
    run=run,
    order=35,
)
