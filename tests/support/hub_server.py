"""A server on 127.0.0.1 that speaks the part of the Hugging Face hub's API that pushing and pulling use."""

import base64
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Hub:
    """Repositories by name, each a mapping from paths to bytes, and the large files by their hash."""

    def __init__(self):
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []

    def commit_of(self, name):
        listed = sorted((path, hashlib.sha1(content).hexdigest()) for path, content in self.repositories[name].items())
        return hashlib.sha1(repr(listed).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, content=b"", status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0].strip("/")
        address = f"http://{self.headers['Host']}"
        if path == "api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.hub.repositories.setdefault(name, {})
            return self.answer({"url": f"{address}/{name}"})
        if path == "api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path.startswith("large/"):
            self.hub.large[path.rpartition("/")[2]] = body
            return self.answer()
        parts = path.removeprefix("api/models/").split("/")
        name, verb = "/".join(parts[:2]).removesuffix(".git"), parts[2] if len(parts) > 2 else ""
        files = self.hub.repositories.get(name)
        if files is None:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        if verb == "preupload":
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in json.loads(body)["files"]
            ]
            return self.answer({"files": [{**mode, "shouldIgnore": False} for mode in modes]})
        if path.endswith("info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            action = [{**o, "actions": {"upload": {"href": f"{address}/large/{o['oid']}"}}} for o in wanted]
            return self.answer({"transfer": "basic", "objects": action})
        if verb == "commit":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    files[value["path"]] = self.hub.large[value["oid"]]
            commit = self.hub.commit_of(name)
            return self.answer({"commitUrl": f"{address}/{name}/commit/{commit}", "commitOid": commit})
        if verb in ("", "revision"):
            siblings = [{"rfilename": path} for path in files]
            return self.answer({"id": name, "sha": self.hub.commit_of(name), "siblings": siblings})
        if verb == "resolve" and (content := files.get("/".join(parts[4:]))) is not None:
            facts = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": self.hub.commit_of(name)}
            return self.answer(content, **facts)
        return self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")

    do_GET = do_POST = do_PUT = do_HEAD = handle_any  # noqa: N815 (the names of http.server)


@contextmanager
def serve_hub():
    """Yield the hub and its address while the server runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
