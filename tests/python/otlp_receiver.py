"""A receiver of OTLP over HTTP. It prints its port, and each span that it accepts as one line of JSON.

With --fail N it answers the first N requests with HTTP 503. With --retry-after SECONDS such an answer asks for a pause,
and a request that comes earlier gets HTTP 400. With --reject N each answer says that N spans were rejected. With --silent
no request gets an answer. With --tls CERTIFICATE KEY it serves HTTPS with these files.
"""

import argparse
import gzip
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

parser = argparse.ArgumentParser()
parser.add_argument("--fail", type=int, default=0)
parser.add_argument("--retry-after", type=int)
parser.add_argument("--reject", type=int, default=0)
parser.add_argument("--silent", action="store_true")
parser.add_argument("--tls", nargs=2)
flags = parser.parse_args()
failures = flags.fail
pause_end = 0


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes(message):
    return {attribute.key: plain(attribute.value) for attribute in message.attributes}


def problem(span):
    """What the protocol forbids, although the types allow it."""
    if len(span.trace_id) != 16 or not any(span.trace_id):
        return "trace_id"
    if len(span.span_id) != 8 or not any(span.span_id):
        return "span_id"
    if span.parent_span_id and len(span.parent_span_id) != 8:
        return "parent_span_id"
    if not span.name or span.end_time_unix_nano < span.start_time_unix_nano:
        return "name or times"
    return None


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        if status == 503 and flags.retry_after:
            self.send_header("retry-after", str(flags.retry_after))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        global failures, pause_end
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            return self.answer(404)
        if flags.silent:
            threading.Event().wait()
        if time.monotonic() < pause_end:
            return self.answer(400)
        if failures > 0:
            failures -= 1
            pause_end = time.monotonic() + (flags.retry_after or 0)
            return self.answer(503)
        encoding = self.headers["content-encoding"]
        if encoding not in (None, "gzip"):
            return self.answer(415)
        if encoding:
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(body)
        except DecodeError:
            return self.answer(400)
        lines = []
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    if problem(span):
                        return self.answer(400)
                    lines.append(
                        {
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex() or None,
                            "name": span.name,
                            "kind": Span.SpanKind.Name(span.kind),
                            "failed": span.status.code == Status.STATUS_CODE_ERROR,
                            "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
                            "attributes": attributes(span),
                            "resource": attributes(of_resource.resource),
                            "scope": of_scope.scope.name,
                            "authorization": self.headers["authorization"],
                            "encoding": encoding,
                        }
                    )
        for line in lines:
            print(json.dumps(line), flush=True)
        response = ExportTraceServiceResponse()
        if flags.reject:
            response.partial_success.rejected_spans = flags.reject
            response.partial_success.error_message = "secret-of-the-receiver"
        self.answer(200, response.SerializeToString())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
if flags.tls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*flags.tls)
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
