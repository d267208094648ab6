// The client's side of HTTP, as coroutines for load generators.
#pragma once
#include "bench/http_load.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace fvlm::bench {

inline constexpr auto outcome = boost::asio::as_tuple(boost::asio::use_awaitable); // errors are returned

// Replaces the events of an answer that was streamed by their text and counts.
void read_events(LoadResult& result);

class HttpClient {
 public:
  HttpClient(boost::asio::io_context& io, const HttpAddress& address) : stream_(io), address_(address) {}

  // Asks for the answer to a streamed request, over a connection that earlier calls opened where there is one. Times
  // are seconds since `start`.
  boost::asio::awaitable<LoadResult> ask(const std::string& body, std::chrono::steady_clock::time_point start);
  // The same with events as its text, for read_events().
  boost::asio::awaitable<LoadResult> ask_unread(const std::string& body, std::chrono::steady_clock::time_point start);
  // A request as bytes of the caller's. Returns the answer's status, or 0 where there is none.
  boost::asio::awaitable<int> send_raw(const std::string& bytes);

  boost::asio::awaitable<bool> connect();
  boost::beast::tcp_stream& stream() { return stream_; }
  boost::beast::http::request<boost::beast::http::string_body>
  request(boost::beast::http::verb verb, const std::string& path, const std::string& body) const;

 private:
  boost::asio::awaitable<LoadResult> try_to_ask(const std::string& body, std::chrono::steady_clock::time_point start);

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  HttpAddress address_;
};

} // namespace fvlm::bench
