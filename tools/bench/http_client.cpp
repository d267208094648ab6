#include "bench/http_client.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace fvlm::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Json = nlohmann::json;

constexpr std::chrono::minutes patience(10);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void take_events(const std::string& body, LoadResult& result) {
  bool is_complete = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    is_complete = event == "data: [DONE]";
    if (is_complete || !event.starts_with("data: ")) continue;
    const Json document = Json::parse(event.substr(6), nullptr, false);
    if (!document.is_object()) {
      result.problem = "an event that is no JSON object: " + event.substr(0, 100);
    } else if (document.contains("error")) {
      result.problem = document["error"].dump();
    } else {
      if (const Json usage = document.value("usage", Json()); usage.is_object()) {
        result.prompt = usage.value("prompt_tokens", int64_t{0});
        result.completion = usage.value("completion_tokens", int64_t{0});
      }
      for (const Json& choice : document.value("choices", Json::array()))
        if (choice.contains("delta")) result.text += choice["delta"].value("content", "");
    }
  }
  if (!is_complete && result.problem.empty()) result.problem = "the stream broke off";
}

} // namespace

void read_events(LoadResult& result) {
  if (!result.problem.empty()) return;
  const std::string events = std::exchange(result.text, "");
  try {
    take_events(events, result);
  } catch (const Json::exception& error) {
    result.problem = fmt::format("events of another form: {}", error.what());
  }
}

http::request<http::string_body> HttpClient::request(http::verb verb, const std::string& path,
                                                     const std::string& body) const {
  http::request<http::string_body> request{verb, path, 11};
  request.set(http::field::host, fmt::format("{}:{}", address_.host, address_.port));
  if (!address_.token.empty()) request.set(http::field::authorization, "Bearer " + address_.token);
  if (verb != http::verb::get) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  return request;
}

asio::awaitable<bool> HttpClient::connect() {
  boost::system::error_code error;
  const auto host = asio::ip::make_address(address_.host, error);
  if (error) co_return false;
  stream_.expires_after(std::chrono::seconds(30));
  const auto [failed] = co_await stream_.async_connect(tcp::endpoint(host, address_.port), outcome);
  buffer_.clear();
  if (!failed) stream_.socket().set_option(tcp::no_delay(true), error);
  co_return !failed;
}

asio::awaitable<LoadResult> HttpClient::ask(const std::string& body, std::chrono::steady_clock::time_point start) {
  LoadResult result = co_await ask_unread(body, start);
  read_events(result);
  if (!result.problem.empty()) stream_.close();
  co_return result;
}

asio::awaitable<LoadResult> HttpClient::ask_unread(const std::string& body,
                                                   std::chrono::steady_clock::time_point start) {
  LoadResult result = co_await try_to_ask(body, start);
  if (!result.problem.empty()) stream_.close(); // it may be in the middle of something
  co_return result;
}

asio::awaitable<LoadResult> HttpClient::try_to_ask(const std::string& body,
                                                   std::chrono::steady_clock::time_point start) {
  LoadResult result;
  result.sent = seconds_since(start);
  const auto failed = [&](std::string what) {
    result.problem = std::move(what);
    result.done = seconds_since(start);
    return result;
  };
  const auto cut_off = [&](boost::system::error_code error) {
    result.is_cut_off = true;
    return failed(error.message());
  };
  if (!stream_.socket().is_open() && !co_await connect()) co_return failed("it cannot be reached");
  auto message = request(http::verb::post, "/v1/chat/completions", body);
  stream_.expires_after(patience);
  if (const auto [error, bytes] = co_await http::async_write(stream_, message, outcome); error)
    co_return cut_off(error);
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  if (const auto [error, bytes] = co_await http::async_read_header(stream_, buffer_, parser, outcome); error)
    co_return cut_off(error);
  while (!parser.is_done()) {
    if (result.first == 0 && !parser.get().body().empty()) result.first = seconds_since(start);
    if (const auto [error, bytes] = co_await http::async_read_some(stream_, buffer_, parser, outcome); error)
      co_return cut_off(error);
  }
  result.done = seconds_since(start);
  if (result.first == 0) result.first = result.done;
  auto response = parser.release();
  if (response.result_int() != 200)
    co_return failed(fmt::format("status {}: {}", response.result_int(), response.body().substr(0, 300)));
  result.text = std::move(response.body());
  if (!response.keep_alive()) stream_.close();
  co_return result;
}

asio::awaitable<int> HttpClient::send_raw(const std::string& bytes) {
  if (!stream_.socket().is_open() && !co_await connect()) co_return 0;
  stream_.expires_after(patience);
  co_await asio::async_write(stream_, asio::buffer(bytes), outcome); // it may answer, and close, before it has read all
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  const auto [error, count] = co_await http::async_read(stream_, buffer_, parser, outcome);
  stream_.close();
  co_return error ? 0 : static_cast<int>(parser.get().result_int());
}

} // namespace fvlm::bench
