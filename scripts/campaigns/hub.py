"""A server on this machine that answers like the Hugging Face Hub, or lies."""

import hashlib
import http.server
import json
import threading
from typing import NamedTuple

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes


def ok(body):
    return Answer(200, {"content-length": str(len(body))}, body)


def listing(name, files):
    """Returns the list of a repository's files as the Hub writes it."""
    siblings = []
    for path, content in files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        file = {"rfilename": path, "size": len(content), "blobId": blob}
        if len(content) > 1000:
            file["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        siblings.append(file)
    return {"id": name, "sha": COMMIT, "cardData": {"license": "mit"}, "siblings": siblings}


class Hub:
    """Serves `answers`: an answer for each path. `kind` of a repository is "models" or "datasets"."""

    def __init__(self):
        self.answers = {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(self, request):
        status, headers, body = self.answers.get(request.path.split("?")[0], Answer(404, {"content-length": "2"}, b"{}"))
        try:
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("connection", "close")
            request.end_headers()
            request.wfile.write(body)
        except OSError:
            # A client that leaves is no failure of the server.
            pass

    def serve_file(self, path, content):
        self.answers[path] = ok(content)

    def serve(self, kind, name, files, list_of_files=None):
        """Serves a repository, with a list of its files that may be wrong."""
        self.answers[f"/api/{kind}/{name}"] = ok(list_of_files or json.dumps(listing(name, files)).encode())
        prefix = "/datasets" if kind == "datasets" else ""
        for path, content in files.items():
            self.answers[f"{prefix}/{name}/resolve/{COMMIT}/{path}"] = ok(content)
