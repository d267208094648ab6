// HttpServer: HTTP/1.1 on one thread. Each request goes to a handler, which answers it at any time from any thread, at
// once or piece by piece.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fvlm {

struct HttpRequest {
  std::string method, path;                                       // the path without the query
  std::string host, origin, content_type, authorization, api_key; // headers; empty: not there
  std::string body;
};

struct HttpLimits {
  uint64_t body_bytes = uint64_t{32} << 20;
  uint64_t all_body_bytes = uint64_t{512} << 20; // of requests that are read or whose bodies are held, together
  uint32_t header_bytes = 16 << 10;
  int64_t connections = 1024;
  std::chrono::seconds idle{60};        // to send a request, to wait between two, and to read what was sent
  std::chrono::seconds first_byte{600}; // until a stream has to begin, and any other answer to be complete
};

// The answer to one request. [any thread]
class HttpResponse {
 public:
  virtual ~HttpResponse() = default;

  // Adds a header; before send() or begin().
  virtual void add_header(std::string name, std::string value) = 0;
  // The whole answer.
  virtual void send(int status, std::string content_type, std::string body) = 0;
  // The beginning of an answer of status 200 that is written in pieces, and ended by end().
  virtual void begin(std::string content_type) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;

  // The handler no longer holds the request's body, which then stops counting towards all_body_bytes.
  virtual void release_body() = 0;
  // Whether the client has closed its connection, so that nothing needs to be sent any more.
  virtual bool is_abandoned() const = 0;

 protected:
  HttpResponse() = default;
  HttpResponse(const HttpResponse&) = default;
  HttpResponse& operator=(const HttpResponse&) = default;
};

// Called on the server's thread: returns soon, and throws nothing. A response that is dropped before it was sent is
// answered with status 500.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpResponse>)>;

// Writes what the server itself refuses, before or in place of the handler.
struct HttpRefusal {
  std::string content_type, body;
};
using WriteRefusal = std::function<HttpRefusal(int status, const std::string& why)>;
HttpRefusal plain_refusal(int status, const std::string& why);

class HttpServer {
 public:
  // Takes the port at once; 0: any free one. Throws Error(usage) for what is no address of this machine, and
  // Error(output) where the port is in use. `address`: localhost is 127.0.0.1.
  HttpServer(const std::string& address, uint16_t port, const HttpLimits& limits, HttpHandler handler,
             WriteRefusal refusal = plain_refusal);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // From now on clients can connect. Throws as the constructor does.
  void listen();
  // Serves until stop(), then until the requests that have begun are answered, but at most for `grace`.
  void run(std::chrono::seconds grace);
  void stop(); // [any thread, also a signal handler's]

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fvlm
