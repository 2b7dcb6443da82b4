"""Sessions of a web application: `tm.aio` behind ASGI, the interface of uvicorn, Starlette and FastAPI.

    python docs/examples/sessions.py

This calls the application as a server would. `uvicorn --app-dir docs/examples sessions:app` serves it.
"""

import asyncio
import json
import os
import secrets
import tempfile
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie

import tidemark as tm

LIFE = timedelta(minutes=30)
COLUMNS = [tm.Column("token", tm.VarChar(43)), tm.Column("seen", tm.Timestamp), tm.Column("pages", tm.JSON)]


async def visit(txn, token, page):
    """Add a page to the session, or to a new one; return its token and its pages."""
    sessions, now = txn.table("session"), datetime.now(UTC)
    session = await sessions.get(token, lock="exclusive")  # another request of this session waits
    pages = [*session.pages, page] if session and session.seen > now - LIFE else [page]
    if len(pages) == 1:
        await sessions.delete_where(tm.col("seen") <= now - LIFE)  # the index finds them
        token = secrets.token_urlsafe(32)
    await sessions.write((token, now, pages))
    return token, pages


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()  # the server starts
        async with tm.aio.open(os.environ.get("SESSIONS", "sessions"), redo_log="16 MiB") as db:
            await db.create_table("session", COLUMNS, "token", exist_ok=True)
            await db.create_index("session", "by_seen", "seen", exist_ok=True)
            scope["state"]["db"] = db  # of every request
            await send({"type": "lifespan.startup.complete"})
            await receive()  # the server stops
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        cookies = SimpleCookie(dict(scope["headers"]).get(b"cookie", b"").decode())
        given = cookies["token"].value if "token" in cookies else ""
        token, pages = await scope["state"]["db"].run(lambda txn: visit(txn, given, scope["path"]))
        headers = [(b"content-type", b"application/json"), (b"set-cookie", f"token={token}; HttpOnly".encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(pages).encode()})


async def main():
    state, events, answers = {}, asyncio.Queue(), asyncio.Queue()
    server = asyncio.create_task(app({"type": "lifespan", "state": state}, events.get, answers.put))
    await events.put({"type": "lifespan.startup"})
    await answers.get()

    async def request(path, cookie=b""):
        sent = asyncio.Queue()
        await app({"type": "http", "path": path, "headers": [(b"cookie", cookie)], "state": state}, None, sent.put)
        start, end = await sent.get(), await sent.get()
        return dict(start["headers"])[b"set-cookie"].partition(b";")[0], json.loads(end["body"])

    cookie, _ = await request("/")
    await asyncio.gather(*(request(f"/{number}", cookie) for number in range(50)))
    again, pages = await request("/basket", cookie)
    assert again == cookie and len(pages) == len(set(pages)) == 52
    print("after 50 requests at once and one more:", len(pages), "pages")
    await state["db"]["session"].update_where({"seen": datetime.now(UTC) - LIFE})
    again, pages = await request("/basket", cookie)
    assert again != cookie and await state["db"]["session"].count() == 1
    print("after half an hour:", pages)
    await asyncio.gather(events.put({"type": "lifespan.shutdown"}), server)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as os.environ["SESSIONS"]:
        asyncio.run(main())
