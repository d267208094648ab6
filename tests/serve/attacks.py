"""The attacks of serve_attacks_test.py: for each what is sent, and what has to come of it. docs/serving.md says why."""
import json
import struct
import zlib

from running_server import data_url, picture

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HOST = b"Host: localhost\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}).encode()


def post(headers, body=b"", host=HOST):
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n" + headers + b"\r\n" + body


def get(path=b"/health", headers=b"", host=HOST, version=b"HTTP/1.1", method=b"GET"):
    return method + b" " + path + b" " + version + b"\r\n" + host + headers + b"\r\n"


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)

# What is written to a socket as it is. The outcome is the status of the first answer; 0: closed without one.
FRAMING = [
    ("garbage", b"\x00\xff garbage\r\n\r\n", 400),
    ("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("HTTP/0.9", b"GET /health\r\n\r\n", 400),
    ("a version that is none", get(version=b"HTTP/9.9"), 400),
    ("no Host", get(host=b""), 400),
    ("two Hosts", get(headers=b"Host: evil.example\r\n"), 400),
    ("two Origins", get(headers=b"Origin: http://localhost\r\nOrigin: http://evil.example\r\n"), 400),
    ("two Content-Types", post(b"Content-Type: text/plain\r\n" + LENGTH, BODY), 400),
    ("two lengths that differ", post(b"Content-Length: 3\r\n" + LENGTH, BODY), 400),
    ("two lengths that agree", post(LENGTH + LENGTH, BODY), 200),
    ("a list of lengths", post(b"Content-Length: 5, 5\r\n", BODY), 400),
    ("a length and chunks", post(LENGTH + CHUNKED, WHOLE_CHUNK), 400),
    ("chunks and a length", post(CHUNKED + LENGTH, WHOLE_CHUNK), 400),
    ("a negative length", post(b"Content-Length: -1\r\n"), 400),
    ("a signed length", post(b"Content-Length: +5\r\n", b"{}   "), 400),
    ("a hexadecimal length", post(b"Content-Length: 0x10\r\n"), 400),
    ("a length beyond 64 bits", post(b"Content-Length: 99999999999999999999999\r\n"), 400),
    ("a length beyond the limit", post(b"Content-Length: 9999999999\r\n"), 413),
    ("an unknown transfer coding", post(b"Transfer-Encoding: xchunked\r\n", WHOLE_CHUNK), (400, 501)),
    ("a chunk size beyond 64 bits", post(CHUNKED, b"FFFFFFFFFFFFFFFFF\r\nx"), 400),
    ("a chunk size beyond the limit", post(CHUNKED, b"FFFFFFFF\r\nx"), 413),
    ("a negative chunk size", post(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"), 400),
    ("a chunk that is longer than it says", post(CHUNKED, b"1\r\nhello\r\n0\r\n\r\n"), 400),
    ("chunk extensions without end", post(CHUNKED, b"1;" + b"a=b;" * 100_000), (0, 400, 413, 431)),
    ("trailers without end", post(CHUNKED, b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 20_000), (0, 400, 431)),
    ("a space before the colon", get(headers=b"X-A : b\r\n"), 400),
    ("a folded header", get(headers=b"X-A: b\r\n c\r\n"), (200, 400)),
    ("a null byte in a header", get(headers=b"X-A: b\x00c\r\n"), 400),
    ("a null byte in the path", get(b"/health\x00"), 400),
    ("lines that end in LF alone", b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),
    ("a lone CR in a header", get(headers=b"X-A: b\rX-B: c\r\n"), 400),
    ("ten thousand headers", get(headers=b"X: y\r\n" * 10_000), 431),
    ("a header of a megabyte", get(headers=b"X: " + b"y" * (1 << 20) + b"\r\n"), 431),
    ("a path of a megabyte", get(b"/" + b"a" * (1 << 20)), 431),
    ("TRACE", get(method=b"TRACE"), (404, 405)),
    ("CONNECT", get(b"evil.example:443", method=b"CONNECT"), 404),
    ("DELETE", get(b"/v1/models", method=b"DELETE"), 405),
    ("OPTIONS for everything", get(b"*", method=b"OPTIONS"), 404),
    ("an upgrade to a web socket", get(b"/", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                                            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"), 200),
    ("another server's address as the path", get(b"http://evil.example/health"), 404),
    ("a second request within the body", post(b"Content-Length: 2\r\n", b"{}GET /metrics HTTP/1.1\r\n\r\n"), 400),
    ("a body that is not announced", get(headers=b"", host=HOST) + BODY, 200),
    ("a promise to continue without an end", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"{}"), 100),
    ("an unknown expectation", get(headers=b"Expect: the-spanish-inquisition\r\n"), 200),
    ("half a header, then the end", b"GET /hea", 0),
    ("half a body, then the end", post(b"Content-Length: 100\r\n", b"{"), 0),
    ("nothing", b"", 0),
]


def chat(content="Hi", **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0} | fields


def image(url):
    return chat([{"type": "image_url", "image_url": {"url": url}}])


def video(url):
    return chat([{"type": "video_url", "video_url": {"url": url}}])


def gif(width, height, frames):
    """A GIF that says it is so large, with frames of one pixel, a second each."""
    frame = (b"\x21\xf9\x04\x00" + struct.pack("<H", 100) + b"\x00\x00" + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0)
             + b"\x02\x02\x44\x01\x00")
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + frame * frames + b"\x3b"


def png(width, height, rows):
    """A PNG that says it is so large, with these bytes as its rows."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def jpeg(width, height):
    """The head of a JPEG that says it is so large, and nothing of it."""
    return (b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03\x01\x11\x00\x02\x11\x01\x03\x11\x01"
            b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00\xff\xd9")


DEEP = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BOMB = png(8000, 8000, bytes(8001 * 8000)) # 62 KB

# Ways to read a text that double with each rule, before its first letter or behind it.
WAYS = "".join(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"\n' for i in range(60)) + 'r60 ::= "a"\n'

MANY = [{}] * 300_000 # objects, which a parser with callbacks reads in a time of their square

# Bodies of POST /v1/chat/completions, as bytes or as documents, with the status and a part of the answer.
BODIES = [
    ("nothing", b"", 400, "parse error"), ("an array", b"[]", 400, "no JSON object"), ("cut off", BODY[:-5], 400, "parse error"),
    ("nested deeply", DEEP, 400, "nested more than"), ("a key twice", BODY[:-1] + b', "max_tokens": 2}', 400, "duplicate key"),
    ("NaN", BODY[:-1] + b', "top_p": NaN}', 400, "parse error"), ("infinity", BODY[:-1] + b', "top_p": 1e999}', 400, "overflow"),
    ("a number of a million digits", BODY[:-1] + b', "seed": ' + b"9" * 1_000_000 + b"}", 400, "overflow"),
    ("invalid UTF-8", BODY.replace(b"Hi", b"\xff\xfe"), 400, "UTF-8"), ("overlong UTF-8", BODY.replace(b"Hi", b"\xc0\xae"), 400, "UTF-8"),
    ("half of a surrogate pair", BODY.replace(b"Hi", b"\\ud800"), 400, "surrogate"),
    ("a null byte", BODY.replace(b"Hi", b"\x00"), 400, "is 0"), ("an escaped null", BODY.replace(b"Hi", b"\\u0000"), 200, "choices"),
    ("gzip", b"\x1f\x8b\x08" + bytes(100), 400, "invalid JSON"),
    ("a text of eight megabytes", chat("a" * (8 << 20)), 400, "bytes of text"),
    ("a million lists", b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}", 400, "at most"),
    ("a hundred thousand messages", chat() | {"messages": [{"role": "user", "content": "a"}] * 100_000}, 400, "at most"),
    ("messages that are none", chat() | {"messages": "Hi"}, 400, "list of messages"),
    ("a role of its own", {"messages": [{"role": "root", "content": "x"}]}, 400, "role"),
    ("the system's turn at the end", {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}, 200, "choices"),
    ("another model's name", chat(model="../../etc/passwd"), 404, "has the model"),
    ("a tool without a name", chat(tools=[{"type": "function"}]), 400, "tools[0]: expected"),
    ("many objects beside tools", chat(tools=[], x=MANY), 200, "choices"), ("many objects beside a form", chat(response_format={"type": "json_object"}, x=MANY), 200, "choices"),
    ("a tool of 100,000 keys", chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {str(key): 1 for key in range(100000)}}}]), 400, "more than 1024 keys"),
    ("a form of 200,000 keys", chat(response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": {str(key): 1 for key in range(200000)}}}), 400,
     "more than 1024 keys"),
    ("a grammar of 2^60 ways", chat(grammar="root ::= r0\n" + WAYS), 200, "choices"), ("one behind a letter", chat(grammar='root ::= "q" r0\n' + WAYS), 200, "choices"),
    ("a tool that asks for deep JSON", chat(tools=[{"type": "function", "function": {"name": "f", "parameters": json.loads("{\"a\":" * 100 + "1" + "}" * 100)}}],
                                            tool_choice="required"), 400, "nested more than 64"),
    ("temperature -1", chat(temperature=-1), 400, "temperature"), ("temperature 1e308", chat(temperature=1e308), 400, "temperature"),
    ("temperature as a text", chat(temperature="NaN"), 400, "temperature"), ("top_p 0", chat(top_p=0), 400, "top_p"),
    ("top_p 2", chat(top_p=2), 400, "top_p"), ("top_k -2", chat(top_k=-2), 400, "top_k"), ("top_k 2^63", chat(top_k=1 << 63), 400, "top_k"),
    ("min_p -0.1", chat(min_p=-0.1), 400, "min_p"), ("n 0", chat(n=0), 400, "n:"), ("n a billion", chat(n=10**9), 400, "n:"),
    ("max_tokens 0", chat(max_tokens=0), 400, "max_tokens"), ("max_tokens 2^62", chat(max_tokens=1 << 62), 400, "max_tokens"),
    ("max_tokens 1.5", chat(max_tokens=1.5), 400, "max_tokens"), ("seed 2^64", chat(seed=1 << 64), 400, "seed"),
    ("a penalty of 0", chat(repetition_penalty=0), 400, "repetition_penalty"),
    ("an empty stop", chat(stop=[""]), 400, "stop"), ("many stops", chat(stop=["x"] * 1000), 400, "stop"),
    ("a stop of a megabyte", chat(stop="x" * (1 << 20)), 400, "stop"),
    ("an address in the network", image("http://127.0.0.1:1/x.png"), 400, "fetches nothing"),
    ("an address with TLS", image("https://evil.example/x.png"), 400, "fetches nothing"),
    ("an address without scheme", image("//evil.example/x.png"), 400, "fetches nothing"),
    ("a file", image("file:///etc/passwd"), 400, "fetches nothing"), ("a path", image("/etc/passwd"), 400, "fetches nothing"),
    ("a path upwards", image("../../../etc/passwd"), 400, "fetches nothing"), ("FTP", image("ftp://evil.example/x"), 400, "fetches nothing"),
    ("a program", image("javascript:alert(1)"), 400, "fetches nothing"), ("no base64", image("data:image/png,abc"), 400, "with base64"),
    ("bad base64", image("data:image/png;base64,$$$$"), 400, "not valid base64"), ("base64 cut off", image("data:image/png;base64,A"), 400, "not valid base64"),
    ("an image of nothing", image("data:image/png;base64,"), 400, "without any bytes"),
    ("SVG with a program", image(data_url(b"<svg onload=alert(1)>", "image/svg+xml")), 400, "not an image"),
    ("GIF of no pixels", image(data_url(b"GIF89a" + bytes(50), "image/gif")), 400, "0 x 0 pixels"),
    ("a PNG of 50,000 by 50,000", image(data_url(png(50_000, 50_000, b""))), 400, "pixels"),
    ("a PNG of 2^31 by 2^31", image(data_url(png(2**31 - 1, 2**31 - 1, b""))), 400, "pixels"),
    ("a PNG of no pixels", image(data_url(png(0, 0, b""))), 400, "image"),
    ("eight PNG of 64 million black pixels", chat([{"type": "image_url", "image_url": {"url": data_url(BOMB)}}] * 8), 400, "pixels"),
    ("a PNG cut off", image(data_url(picture()[:60])), 400, "image 0"),
    ("a PNG with more rows than it says", image(data_url(png(4, 4, bytes(1 << 24)))), (200, 400), ""),
    ("a JPEG of 65,500 by 65,500", image(data_url(jpeg(65_500, 65_500), "image/jpeg")), 400, "pixels"),
    ("a JPEG without a picture", image(data_url(jpeg(8, 8), "image/jpeg")), 400, "image 0"),
    ("65 images", chat([{"type": "image_url", "image_url": {"url": data_url(picture())}}] * 65), 400, "at most 64 images"),
    ("an image of the system", {"messages": [{"role": "system", "content": image("data:,")["messages"][0]["content"]},
                                             {"role": "user", "content": "x"}]}, 400, "only a user's"),
    ("a video of no frames", chat([{"type": "video", "video": []}]), 400, "the frames in order"),
    ("a video of one text", chat([{"type": "video", "video": data_url(picture())}]), 400, "the frames in order"),
    ("a video elsewhere", chat([{"type": "video", "video": ["http://169.254.169.254/"]}]), 400, "data URLs only"),
    ("65 frames of a video", chat([{"type": "video", "video": [data_url(picture())] * 65}]), 400, "at most 64 images"),
    ("a video's file of nothing", video("data:video/mp4;base64,"), 400, "the video"),
    ("a video's file elsewhere", video("https://evil.example/x.mp4"), 400, "data URLs only"),
    ("a video's file on this machine", video("file:///etc/passwd"), 400, "data URLs only"),
    ("a video's file that is an image", video(data_url(picture())), 400, "expected a video"),
    ("a video's file that says it is one", video(data_url(picture(), "video/mp4")), 400, "the video"),
    ("a video's file of noise", video(data_url(bytes(range(256)) * 64, "video/mp4")), 400, "the video"),
    ("a video's file with a box beyond its end", video(data_url(b"\x7f\xff\xff\xffftypisom" + bytes(64), "video/mp4")), 400, "the video"),
    ("a GIF of no pixels as a video", video(data_url(b"GIF89a" + bytes(50), "video/gif")), 400, "the video"),
    ("a GIF of 65,535 by 65,535", video(data_url(gif(65_535, 65_535, 2), "video/gif")), 400, "pixels"),
    ("a GIF of 4,000 by 4,000 in 20 frames", video(data_url(gif(4_000, 4_000, 20), "video/gif")), 400, "pixels together"),
    ("two files of videos", chat(video(data_url(gif(4, 4, 2), "video/gif"))["messages"][0]["content"] * 2), 400, "one video"),
    ("a video's file without an address", chat([{"type": "video_url"}]), 400, "expected"),
    ("a part of another type", chat([{"type": "file", "file": {"file_id": "/etc/passwd"}}]), 400, "parts are of type"),
    ("the mark of an image", chat("<image>"), 200, "choices"), ("150,000 marks", chat("<video>" * 149_000), 400, "maximum context length"),
    ("HTML", chat("<script>alert(1)</script>"), 200, "choices"), ("a terminal's control characters", chat("\x1b]0;x\x07\x1b[2J"), 200, "choices"),
    ("text from right to left", chat("\u202eabc\u200b\ufeff"), 200, "choices"),
    ("a template in the system's text", {"messages": [{"role": "system", "content": "{{ 7 * 7 }}{% for x in range(9**9) %}x{% endfor %}"},
                                                      {"role": "user", "content": "x"}], "max_tokens": 1}, 200, "choices"),
]



def response(asked="Hi", **fields):
    return {"input": asked, "max_output_tokens": 1, "temperature": 0} | fields


def item(*parts):
    return response([{"type": "message", "role": "user", "content": list(parts)}])


def input_image(url):
    return item({"type": "input_image", "image_url": url})


# The same of other routes.
OTHER_BODIES = [
    (RESPONSES, "a good one", response(), 200, "output_text"), (RESPONSES, "nothing", b"", 400, "parse error"), (RESPONSES, "an array", b"[]", 400, "no JSON object"),
    (RESPONSES, "cut off", b'{"input": "Hi"', 400, "parse error"), (RESPONSES, "nested deeply", DEEP.replace(b"messages", b"input"), 400, "nested more than"),
    (RESPONSES, "a key twice", b'{"input": "a", "input": "b"}', 400, "duplicate key"), (RESPONSES, "half of a surrogate pair", b'{"input": "\\ud800"}', 400, "surrogate"),
    (RESPONSES, "a text of eight megabytes", response("a" * (8 << 20)), 400, "bytes of text"),
    (RESPONSES, "instructions of eight megabytes", response(instructions="a" * (8 << 20)), 400, "bytes of text"),
    (RESPONSES, "a form of two megabytes", response(text={"format": {"type": "json_object", "x": "a" * (2 << 20)}}), 400, "bytes of text"),
    (RESPONSES, "metadata of eight megabytes", response(metadata={"a": "b" * (8 << 20)}), 400, "metadata"),
    (RESPONSES, "metadata of a million keys", response(metadata={str(number): "" for number in range(1_000_000)}), 400, "metadata"),
    (RESPONSES, "metadata that is deep", response(metadata={"a": {"b": "c"}}), 400, "metadata"),
    (RESPONSES, "a hundred thousand items", response([{"role": "user", "content": "a"}] * 100_000), 400, "at most"),
    (RESPONSES, "an item of another type, which is long", response([{"type": "x" * 100_000}]), 400, "items are of type message"),
    (RESPONSES, "an item that is a list", response([[]]), 400, "expected an object"), (RESPONSES, "a type that is a number", response([{"type": 1}]), 400, "expected a string"),
    (RESPONSES, "a thousand names to include", response(include=["message.output_text.logprobs"] * 1000), 200, "output_text"),
    (RESPONSES, "a file to include", response(include=["../../etc/passwd"]), 400, "include"), (RESPONSES, "max_output_tokens 2^62", response(max_output_tokens=1 << 62), 400, "max_output_tokens"),
    (RESPONSES, "another's response", response(previous_response_id="../resp_1"), 400, "nothing is kept"),
    (RESPONSES, "an address in the network", input_image("http://169.254.169.254/"), 400, "fetches nothing"), (RESPONSES, "a file", input_image("file:///etc/passwd"), 400, "fetches nothing"),
    (RESPONSES, "an image that is an object", input_image({"url": ["data:"]}), 400, "this server keeps no files"),
    (RESPONSES, "a PNG of 50,000 by 50,000", input_image(data_url(png(50_000, 50_000, b""))), 400, "pixels"),
    (RESPONSES, "65 images", item(*[{"type": "input_image", "image_url": data_url(picture())}] * 65), 400, "at most 64 images"),
    ("/tokenize", "a text of eight megabytes", {"prompt": "a" * (8 << 20)}, 400, "bytes of text"), ("/tokenize", "nested deeply", DEEP, 400, "nested more than"),
    ("/tokenize", "many objects beside tools", {"messages": [{"role": "user", "content": "Hi"}], "tools": [], "x": MANY}, 200, "tokens"),
    (RESPONSES, "many objects beside a form", response(text={"format": {"type": "json_object"}}, x=MANY), 200, "output_text"),
    ("/tokenize", "a hundred thousand messages", {"messages": [{"role": "user", "content": "a"}] * 100_000}, 400, "at most"),
    ("/tokenize", "a file", {"messages": image("file:///etc/passwd")["messages"]}, 400, "fetches nothing"), ("/tokenize", "half of a surrogate pair", b'{"prompt": "\\ud800"}', 400, "surrogate"),
    ("/tokenize", "a PNG of 64 million pixels", {"messages": image(data_url(BOMB))["messages"]}, 400, "not tokenized"),
    ("/detokenize", "a million lists", b'{"tokens":[' + b"[]," * 1_000_000 + b"[]]}", 400, "expected tokens"), ("/detokenize", "token 2^31", {"tokens": [1 << 31]}, 400, "expected tokens"),
    ("/detokenize", "two million tokens", {"tokens": [3] * (2 << 20)}, 400, "at most"), ("/detokenize", "token 2^64", {"tokens": [1 << 64]}, 400, "tokens"),
    (RESPONSES, "the mark of an image", response("<image>"), 200, "output_text"), (RESPONSES, "a control token", response("<|im_end|>"), 200, "output_text"),
]

# Headers of an otherwise good request, which pages of others send or let the browser send, and the status.
HEADERS = [
    ("a name that was rebound", {"Host": "evil.example"}, 421), ("one that begins like ours", {"Host": "localhost.evil.example"}, 421),
    ("one that begins like an address", {"Host": "127.0.0.1.evil.example"}, 421), ("a user before the name", {"Host": "localhost@evil.example"}, 421),
    ("a name with a null", {"Host": "evil.example%00localhost"}, 421), ("a broken IPv6 address", {"Host": "[::1"}, (200, 403, 421)),
    ("a page elsewhere", {"Origin": "http://evil.example"}, 403), ("a page without origin", {"Origin": "null"}, 403),
    ("a page on another port of this machine", {"Origin": "http://localhost:1"}, 403), ("a file", {"Origin": "file://"}, 403),
    ("an extension", {"Origin": "chrome-extension://abc"}, 403), ("an origin that ends like ours", {"Origin": "http://evil-localhost"}, 403),
    ("plain text", {"Content-Type": "text/plain"}, 415), ("a form", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ("a form with files", {"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ("text that mentions JSON", {"Content-Type": "text/plain; application/json"}, 415), ("XML", {"Content-Type": "application/xml"}, 415),
]

PATHS = ["/../../etc/passwd", "/v1/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%c0%ae%c0%ae/etc/passwd",
         "//etc/passwd", "/\\..\\..\\windows", "/v1/models/../../x", "/page.html", "/.git/config", "/health%00.html", "/v1/files", "/v1/responses/../x", "/tokenize/../etc/passwd", "/#/metrics"]
