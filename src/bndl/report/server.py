"""The explorer's server: the report's page, with a model behind it that answers."""

import functools
import html
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

import fastapi
import uvicorn
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from bndl.errors import BndlError, FileError, InputError
from bndl.report.answer import answer, effect_record
from bndl.report.asked import Asked, Changed, Explained, Filtered
from bndl.report.jobs import Jobs
from bndl.report.page import render
from bndl.report.refused import RefusedError
from bndl.report.saving import save_edited
from bndl.report.security import Guard, Rules
from bndl.report.seeing import Limed, lime_work
from bndl.report.session import Session

__all__ = ["bind", "create_app", "live_page", "serve"]

_SCRIPTS = ("live.js", "live_ask.js", "live_lime.js", "live_edits.js")  # in this order: they share one scope
_MOST_THUMBS = 48


def create_app(session: Session, *, rules: Rules) -> fastapi.FastAPI:
    """The application: ``/`` is the page, ``/api/...`` answers it; every error is ``{"error": one sentence}``.

    Args:
        session: what is explored.
        rules: who may ask.
    """
    jobs = Jobs()

    @asynccontextmanager
    async def alive(_: fastapi.FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=alive)
    app.add_middleware(Guard, rules=rules)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    page = live_page(session)
    policy = f"{_policy_of(page)}; frame-ancestors 'none'"

    @app.get("/")
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    app.include_router(_questions(session))
    app.include_router(_edits(session))
    app.include_router(_limes(session, jobs))
    return app


def live_page(session: Session) -> str:
    """The report's page, alive."""
    report = {**session.report, "meta": {**session.report["meta"], "live": True}}
    assets = resources.files("bndl.report").joinpath("assets")
    sources = [assets.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS]
    style = assets.joinpath("live.css").read_text(encoding="utf-8").replace("\\", "\\\\").replace("`", "\\`")
    body = "\n".join(f"// {name}\n{source}" for name, source in zip(_SCRIPTS, sources, strict=True))
    return render(report, extra_scripts=[f'(() => {{\n"use strict";\nconst STYLE = `{style}`;\n{body}\n}})();'])


def _policy_of(page: str) -> str:
    """The content security policy that the page states of itself, to be said in a header too."""
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    if found is None:
        raise InputError("the page states no content security policy: do not serve it.")
    return html.unescape(found[1])


# ------------------------------------------------------------------------------------------------------------- the API


def _questions(session: Session) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/api")

    @router.post("/upload")
    async def upload(request: fastapi.Request) -> dict[str, Any]:
        raw = await request.body()  # the guard counts while it is read
        return {"upload": await _elsewhere(session.upload, raw)}

    @router.post("/predict")
    def predict(asked: Asked) -> dict[str, Any]:
        return answer(session, asked)

    @router.get("/examples")
    def examples(asked: Annotated[Filtered, fastapi.Query()]) -> dict[str, Any]:
        return session.examples(asked)

    @router.get("/thumbs")
    def thumbs(examples: Annotated[list[int], fastapi.Query(max_length=_MOST_THUMBS)]) -> dict[str, str]:
        if any(number < 0 for number in examples):
            raise InputError("examples are numbered from 0.")
        return session.thumbs(examples)

    return router


def _edits(session: Session) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/api")

    @router.post("/effect")
    def effect(asked: Changed) -> dict[str, Any]:
        return effect_record(session, asked.made())

    @router.post("/save")
    def save(asked: Changed) -> dict[str, Any]:
        folder = save_edited(session, asked.made())
        return {"folder": str(folder), "files": sorted(path.name for path in folder.iterdir())}

    return router


def _limes(session: Session, jobs: Jobs) -> fastapi.APIRouter:
    router = fastapi.APIRouter(prefix="/api")
    own_model = functools.lru_cache(maxsize=1)(session.model)  # for the one thread that does the jobs

    @router.post("/lime", status_code=202)
    def lime(asked: Explained) -> dict[str, Any]:
        return jobs.submit(lime_work(session, own_model, asked)).to_dict()

    @router.get("/jobs/{name}")
    async def job(name: str) -> dict[str, Any]:
        return jobs.get(name).to_dict()

    @router.delete("/jobs/{name}")
    async def stop(name: str) -> dict[str, Any]:
        return jobs.stop(name).to_dict()

    @router.get("/jobs/{name}/heat")
    def heat(name: str, feature: int | None = None, target: int | None = None) -> dict[str, Any]:
        found = jobs.get(name)
        if not isinstance(found.result, Limed):
            raise RefusedError("This explanation is not finished.", status=409)
        return found.result.heat(feature=feature, target=target)

    return router


async def _elsewhere(work: Callable[..., Any], *given: Any) -> Any:
    """Work that takes a processor, away from the thread that answers."""
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(work, *given)


# ---------------------------------------------------------------------------------------------------------- the errors


def _said(sentence: str, status: int) -> JSONResponse:
    return JSONResponse({"error": sentence[:1].upper() + sentence[1:]}, status_code=status)


async def _refused(_: fastapi.Request, error: Exception) -> JSONResponse:
    status = error.status if isinstance(error, RefusedError) else 500 if isinstance(error, FileError) else 422
    return _said(str(error), status)


async def _unfit(_: fastapi.Request, error: Exception) -> JSONResponse:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": "it does not fit"}
    where = ".".join(str(part) for part in first["loc"][1:])  # without "body" or "query"
    return _said(f"The question does not fit at {where or 'its start'}: {first['msg']}.", 422)


async def _http(_: fastapi.Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    known = {404: "There is nothing at this address.", 405: "This address takes another kind of request."}
    return _said(known.get(status, str(getattr(error, "detail", error))), status)


async def _bug(_: fastapi.Request, error: Exception) -> JSONResponse:
    return _said("Something went wrong that should not have; the terminal says more.", 500)


_HANDLERS: dict[type[Exception], Callable[[fastapi.Request, Exception], Any]] = {
    BndlError: _refused,
    RequestValidationError: _unfit,
    HTTPException: _http,
    Exception: _bug,
}


# ---------------------------------------------------------------------------------------------------------- the socket


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; said before any work is done, if it cannot be had.

    Args:
        host: a name or an address of this machine.
        port: 0 for any that is free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"{host!r} is no address of this machine: take 127.0.0.1.") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        if isinstance(error, PermissionError):
            raise InputError(f"port {port} needs more rights than you have: choose --port 1024 or above.") from error
        raise InputError(
            f"port {port} of {host} cannot be had, something else may use it: choose another --port, or 0 for any."
        ) from error
    return bound


def serve(app: fastapi.FastAPI, bound: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until Ctrl-C.

    Args:
        app: see :func:`create_app`.
        bound: see :func:`bind`.
        ready: is called once it answers.
    """

    class _Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses may hold a token
        proxy_headers=False,
        server_header=False,
        limit_concurrency=200,
        timeout_graceful_shutdown=3,
    )
    try:
        _Server(config).run(sockets=[bound])
    except KeyboardInterrupt:
        pass  # uvicorn has ended everything in order, then raises it again
    finally:
        bound.close()
