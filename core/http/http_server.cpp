#include "http/http_server.h"

#include "base/error.h"
#include "http/client_watch.h"
#include "http/pending_response.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include <array>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace fvlm {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using RequestParser = http::request_parser<http::string_body>;
constexpr auto outcome = asio::as_tuple(asio::use_awaitable); // errors are returned instead of thrown

constexpr const char* api_key_header = "x-api-key"; // of Anthropic's clients

// HEAD is GET to the handler; its answer is sent without the body.
HttpRequest request_of(http::request<http::string_body>&& request) {
  const std::string_view target(request.target().data(), request.target().size());
  return {std::string(request.method() == http::verb::head ? "GET" : request.method_string()),
          std::string(target.substr(0, target.find('?'))),
          std::string(request[http::field::host]),
          std::string(request[http::field::origin]),
          std::string(request[http::field::content_type]),
          std::string(request[http::field::authorization]),
          std::string(request[api_key_header]),
          std::move(request.body())};
}

// What is wrong with the headers that decide who may ask: there are two of one, so that it is unclear which holds, or,
// with HTTP/1.1, there is no Host.
std::optional<std::string> unclear_header(const http::request<http::string_body>& request) {
  for (const http::field field :
       {http::field::host, http::field::origin, http::field::content_type, http::field::authorization})
    if (request.count(field) > 1)
      return fmt::format("the request has two headers {}", std::string(http::to_string(field)));
  if (request.count(api_key_header) > 1) return fmt::format("the request has two headers {}", api_key_header);
  if (request.version() >= 11 && request.count(http::field::host) == 0) return "the request has no Host";
  return std::nullopt;
}

// Headers that let a browser do no more with an answer than show it to who asked.
template <class Message>
void add_headers(Message& message, const PendingResponse::Head& head) {
  message.set(http::field::content_type, head.content_type);
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  message.set("Referrer-Policy", "no-referrer");
  for (const auto& [name, value] : head.headers) message.set(name, value);
}

} // namespace

struct HttpServer::State {
  asio::io_context io{1};
  Outbox outbox{io};
  tcp::acceptor acceptor{io};
  asio::steady_timer patience{io};
  HttpLimits limits;
  HttpHandler handler;
  WriteRefusal refusal;
  int64_t connections = 0, answering = 0;
  uint64_t body_bytes = 0; // of requests that are read or held; while one that does not say is read, the most
  bool stopping = false;
  int wake = -1; // an eventfd, since a signal handler may write to one

  ~State() {
    if (wake >= 0) close(wake);
  }

  asio::awaitable<void> accept() {
    for (;;) {
      auto [error, socket] = co_await acceptor.async_accept(outcome);
      if (stopping || error == asio::error::operation_aborted) co_return;
      if (error) { // out of descriptors, for example
        asio::steady_timer pause(io, std::chrono::milliseconds(100));
        co_await pause.async_wait(outcome);
        continue;
      }
      asio::co_spawn(io, connection(beast::tcp_stream(std::move(socket))), asio::detached);
    }
  }

  asio::awaitable<void> connection(beast::tcp_stream stream) {
    ++connections;
    error_code ignored;
    // Without this, the first token would wait for the client's acknowledgement of the headers, 40 ms.
    stream.socket().set_option(tcp::no_delay(true), ignored);
    stream.socket().non_blocking(true, ignored);
    beast::flat_buffer buffer;
    buffer.reserve(16 << 10); // it reads as much at a time: 512 bytes unless it is told
    bool open = connections <= limits.connections;
    if (!open) co_await refuse(stream, http::status::service_unavailable, "too many connections");
    while (open && !stopping) open = co_await exchange(stream, buffer);
    --connections;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    finish_if_idle();
  }

  // What an answer's form owes to its request.
  struct Reply {
    unsigned version;
    bool keeps_alive, is_header_alone;
  };

  // Reads one request and sends its answer. Returns whether the connection can carry another one.
  asio::awaitable<bool> exchange(beast::tcp_stream& stream, beast::flat_buffer& buffer) {
    RequestParser parser;
    parser.body_limit(limits.body_bytes);
    parser.header_limit(limits.header_bytes);
    stream.expires_after(limits.idle);
    auto [head_error, head_bytes] = co_await http::async_read_header(stream, buffer, parser, outcome);
    if (head_error) co_return co_await refuse_unreadable(stream, head_error);
    uint64_t length = parser.content_length().value_or(parser.chunked() ? limits.body_bytes : 0);
    if (body_bytes + length > limits.all_body_bytes) {
      co_await refuse(stream, http::status::service_unavailable, "too many large requests at a time; try again later",
                      "10");
      co_return false;
    }
    body_bytes += length;
    const bool reusable = co_await read_and_answer(stream, buffer, parser, length);
    body_bytes -= length;
    co_return reusable;
  }

  // `length`: of the body, in body_bytes.
  asio::awaitable<bool> read_and_answer(beast::tcp_stream& stream, beast::flat_buffer& buffer, RequestParser& parser,
                                        uint64_t& length) {
    stream.expires_after(limits.idle); // until now the connection may have waited for a request
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on{http::status::continue_, 11};
      co_await http::async_write(stream, go_on, outcome);
    }
    auto [error, bytes] = co_await http::async_read(stream, buffer, parser, outcome);
    if (error) co_return co_await refuse_unreadable(stream, error);
    const uint64_t read = parser.get().body().size(); // less than it could be where it came in chunks
    body_bytes -= std::exchange(length, read) - read;
    if (const auto unclear = unclear_header(parser.get())) {
      co_await refuse(stream, http::status::bad_request, *unclear);
      co_return false;
    }

    const Reply reply{parser.get().version(), parser.get().keep_alive(), parser.get().method() == http::verb::head};
    auto response = std::make_shared<PendingResponse>(io, outbox, refusal);
    ++answering;
    handler(request_of(parser.release()), std::make_shared<PendingResponse::Handle>(response));
    const bool sent = co_await send(stream, *response, reply, length);
    --answering;
    if (!sent) response->abandon();
    co_return sent&& reply.keeps_alive;
  }

  // `length`: of the request's body, in body_bytes until it is released.
  asio::awaitable<bool> send(beast::tcp_stream& stream, PendingResponse& response, const Reply& reply,
                             uint64_t& length) {
    const ClientWatch watch(stream.socket(), response.shared_from_this());
    stream.expires_never();
    // An answer that the handler gave at once is sent even if the client has closed its sending direction.
    co_await asio::post(io, asio::use_awaitable);
    asio::steady_timer patience(io, limits.first_byte);
    patience.async_wait([pending = response.shared_from_this()](error_code error) {
      if (!error) pending->give_up();
    });
    const auto count_body = [&] {
      if (response.body_is_released_) body_bytes -= std::exchange(length, 0);
    };
    while (!response.head_) {
      if (response.client_has_left_) co_return false;
      co_await response.changed();
      count_body();
    }
    patience.cancel();
    const PendingResponse::Head head = std::move(*response.head_);
    if (!head.in_pieces) co_return co_await send_whole(stream, head, reply);

    http::response<http::empty_body> begin{http::status::ok, reply.version};
    add_headers(begin, head);
    begin.keep_alive(reply.keeps_alive);
    const bool chunked = reply.version >= 11;
    begin.chunked(chunked);
    http::response_serializer<http::empty_body> serializer(begin);
    stream.expires_after(limits.idle);
    if (auto [error, bytes] = co_await http::async_write_header(stream, serializer, outcome); error) co_return false;
    for (;;) {
      while (response.pieces_.empty() && !response.ended_) {
        if (response.client_has_left_) co_return false;
        co_await response.changed();
        count_body();
      }
      std::string text;
      for (std::string& piece : response.pieces_) text += piece;
      response.pieces_.clear();
      if (!text.empty() && chunked) text = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
      const bool ends = response.ended_;
      if (ends && chunked) text += "0\r\n\r\n";
      if (!co_await send_piece(stream, text)) co_return false;
      if (ends) co_return chunked;
    }
  }

  // Nearly always the system takes all of it at once, which costs a fraction of an operation that could wait.
  asio::awaitable<bool> send_piece(beast::tcp_stream& stream, const std::string& text) {
    error_code error;
    const size_t sent = stream.socket().write_some(asio::buffer(text), error);
    if (!error && sent == text.size()) co_return true;
    if (error && error != asio::error::would_block) co_return false;
    stream.expires_after(limits.idle);
    const auto [failed, bytes] = co_await asio::async_write(stream, asio::buffer(text) + (error ? 0 : sent), outcome);
    stream.expires_never();
    co_return !failed;
  }

  asio::awaitable<bool> send_whole(beast::tcp_stream& stream, const PendingResponse::Head& head, const Reply& reply) {
    http::response<http::string_body> whole{http::int_to_status(static_cast<unsigned>(head.status)), reply.version};
    add_headers(whole, head);
    whole.body() = head.body;
    whole.keep_alive(reply.keeps_alive && !stopping);
    whole.prepare_payload();
    stream.expires_after(limits.idle);
    if (reply.is_header_alone) {
      http::response_serializer<http::string_body> serializer(whole);
      auto [error, bytes] = co_await http::async_write_header(stream, serializer, outcome);
      co_return !error;
    }
    auto [error, bytes] = co_await http::async_write(stream, whole, outcome);
    co_return !error;
  }

  asio::awaitable<bool> refuse_unreadable(beast::tcp_stream& stream, error_code error) {
    if (error == http::error::body_limit)
      co_await refuse(stream, http::status::payload_too_large,
                      fmt::format("a request has at most {} bytes", limits.body_bytes));
    else if (error == http::error::header_limit)
      co_await refuse(stream, http::status::request_header_fields_too_large, "the header is too long");
    else if (error.category() == http::make_error_code(http::error::end_of_stream).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message)
      co_await refuse(stream, http::status::bad_request, "this is no HTTP request: " + error.message());
    co_return false;
  }

  asio::awaitable<void> refuse(beast::tcp_stream& stream, http::status status, std::string why,
                               std::string retry_after = "") {
    http::response<http::string_body> answer{status, 11};
    HttpRefusal written = refusal(static_cast<int>(status), why);
    answer.set(http::field::content_type, written.content_type);
    if (!retry_after.empty()) answer.set(http::field::retry_after, retry_after);
    answer.body() = std::move(written.body);
    answer.keep_alive(false);
    answer.prepare_payload();
    stream.expires_after(std::chrono::seconds(5));
    co_await http::async_write(stream, answer, outcome);
    // What the client still sends is read, since closing at once would let it lose the answer.
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    std::array<char, 65536> rest;
    for (uint64_t seen = 0; seen < 2 * limits.body_bytes;) {
      auto [error, bytes] = co_await stream.async_read_some(asio::buffer(rest), outcome);
      if (error) break;
      seen += bytes;
    }
  }

  void finish_if_idle() {
    if (stopping && answering == 0) io.stop();
  }

  asio::awaitable<void> await_stop(std::chrono::seconds grace) {
    asio::posix::stream_descriptor waker(io, wake);
    uint64_t count = 0;
    co_await waker.async_read_some(asio::buffer(&count, sizeof count), outcome);
    (void)waker.release();
    stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    patience.expires_after(grace);
    patience.async_wait([this](error_code error) {
      if (!error) io.stop();
    });
    finish_if_idle();
  }
};

namespace {

Error cannot_listen(const tcp::endpoint& at, const error_code& error) {
  const bool in_use = error == asio::error::address_in_use;
  Error refused(in_use ? ErrorKind::output : ErrorKind::usage,
                fmt::format("cannot listen on {} port {}: {}", at.address().to_string(), at.port(), error.message()));
  if (in_use)
    refused.advise("another program has this port: choose another one; port 0 stands for any free one");
  else if (error == asio::error::access_denied)
    refused.advise("ports below 1024 are for root: choose another one, such as 8000");
  else
    refused.advise("give an address of this machine; 0.0.0.0 stands for all of them");
  return refused;
}

} // namespace

HttpRefusal plain_refusal(int, const std::string& why) {
  return {"text/plain", why + "\n"};
}

HttpServer::HttpServer(const std::string& address, uint16_t port, const HttpLimits& limits, HttpHandler handler,
                       WriteRefusal refusal)
    : state_(std::make_unique<State>()) {
  state_->limits = limits;
  state_->handler = std::move(handler);
  state_->refusal = std::move(refusal);
  error_code error;
  const auto host = asio::ip::make_address(address == "localhost" ? "127.0.0.1" : address, error);
  if (error)
    throw Error(ErrorKind::usage, "'{}' is no IP address", address)
        .advise("127.0.0.1: only for programs on this machine; 0.0.0.0: for all that reach it");
  const tcp::endpoint endpoint(host, port);
  state_->acceptor.open(endpoint.protocol(), error);
  if (!error) state_->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) state_->acceptor.bind(endpoint, error);
  if (error) throw cannot_listen(endpoint, error);
  state_->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state_->wake < 0) throw Error(ErrorKind::device, "no file descriptor is left");
}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const {
  return state_->acceptor.local_endpoint().port();
}

void HttpServer::listen() {
  error_code error;
  state_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) throw cannot_listen(state_->acceptor.local_endpoint(), error);
}

void HttpServer::run(std::chrono::seconds grace) {
  asio::co_spawn(state_->io, state_->accept(), asio::detached);
  asio::co_spawn(state_->io, state_->await_stop(grace), asio::detached);
  state_->io.run();
}

void HttpServer::stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(state_->wake, &one, sizeof one);
}

} // namespace fvlm
