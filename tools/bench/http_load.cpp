#include "bench/http_load.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "base/random.h"
#include "base/task_thread.h"
#include "bench/http_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <sstream>

namespace fvlm::bench {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;

void rethrow(std::exception_ptr error) {
  if (error) std::rethrow_exception(error);
}

class LoadGenerator {
 public:
  LoadGenerator(const HttpAddress& address, const std::vector<std::string>& bodies, const RequestTimes& arrivals,
                const Progress& progress)
      : address_(address), bodies_(bodies), arrivals_(arrivals), progress_(progress), results_(bodies.size()) {}

  std::vector<LoadResult> run() {
    asio::signal_set signals(io_, SIGINT, SIGTERM);
    signals.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      interrupted_ = number;
      io_.stop();
    });
    done_ = [&] {
      if (++answered_ == bodies_.size()) signals.cancel();
    };
    if (arrivals_.rate > 0)
      asio::co_spawn(io_, arrive(), rethrow);
    else
      for (int64_t i = 0; i < arrivals_.clients; ++i) asio::co_spawn(io_, ask_in_turn(), rethrow);
    if (!bodies_.empty()) io_.run();
    if (interrupted_ != 0) throw Interrupted(interrupted_);
    return std::move(results_);
  }

 private:
  void take(size_t number, LoadResult result) {
    results_[number] = std::move(result);
    done_();
    progress_(fmt::format("port {}", address_.port), static_cast<int64_t>(answered_), std::ssize(bodies_));
  }

  asio::awaitable<void> ask_in_turn() {
    HttpClient client(io_, address_);
    while (next_ < bodies_.size()) {
      const size_t number = next_++;
      take(number, co_await client.ask_unread(bodies_[number], start_));
    }
  }

  asio::awaitable<void> arrive() {
    const RandomStream random(arrivals_.seed, "arrivals");
    asio::steady_timer timer(io_);
    double at = 0;
    for (; next_ < bodies_.size(); ++next_) {
      at -= std::log1p(-random.uniform(next_)) / arrivals_.rate;
      timer.expires_at(start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at)));
      co_await timer.async_wait(outcome);
      asio::co_spawn(io_, ask_alone(next_), rethrow);
    }
  }

  asio::awaitable<void> ask_alone(size_t number) {
    std::unique_ptr<HttpClient> client;
    if (idle_.empty()) {
      client = std::make_unique<HttpClient>(io_, address_);
    } else {
      client = std::move(idle_.back());
      idle_.pop_back();
    }
    LoadResult result = co_await client->ask_unread(bodies_[number], start_);
    idle_.push_back(std::move(client));
    take(number, std::move(result));
  }

  asio::io_context io_{1};
  HttpAddress address_;
  const std::vector<std::string>& bodies_;
  RequestTimes arrivals_;
  const Progress& progress_;
  std::vector<LoadResult> results_;
  std::vector<std::unique_ptr<HttpClient>> idle_; // with connections that carry further requests
  std::function<void()> done_;
  size_t next_ = 0, answered_ = 0;
  int interrupted_ = 0;
  Clock::time_point start_ = Clock::now();
};

template <class Result>
Result run_alone(asio::io_context& io, asio::awaitable<Result> work) {
  std::optional<Result> result;
  asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, Result got) {
    rethrow(error);
    result = std::move(got);
  });
  io.run();
  return std::move(*result);
}

} // namespace

HttpAddress address_of(const std::string& url) {
  const Error wrong =
      Error(ErrorKind::usage, "--url: '{}' is no address of a server", url).advise("--url http://127.0.0.1:8000");
  constexpr std::string_view scheme = "http://";
  if (!url.starts_with(scheme)) throw wrong;
  const std::string rest = url.substr(scheme.size(), url.find('/', scheme.size()) - scheme.size());
  const size_t colon = rest.rfind(':');
  HttpAddress address{rest.substr(0, colon), 80, ""};
  if (colon != std::string::npos) {
    const auto [end, error] = std::from_chars(rest.data() + colon + 1, rest.data() + rest.size(), address.port);
    if (error != std::errc() || end != rest.data() + rest.size()) throw wrong;
  }
  if (address.host == "localhost") address.host = "127.0.0.1";
  boost::system::error_code error;
  asio::ip::make_address(address.host, error);
  if (error) throw wrong;
  return address;
}

std::vector<LoadResult> run_load(const HttpAddress& address, const std::vector<std::string>& bodies,
                                 const RequestTimes& arrivals, const Progress& progress, double* clients_cpu) {
  const double before = cpu_seconds();
  std::vector<LoadResult> results = LoadGenerator(address, bodies, arrivals, progress).run();
  if (clients_cpu) *clients_cpu = cpu_seconds() - before;
  for (LoadResult& result : results) read_events(result); // now that no other client waits for this thread
  return results;
}

LoadResult ask_once(const HttpAddress& address, const std::string& body) {
  asio::io_context io;
  HttpClient client(io, address);
  return run_alone(io, client.ask(body, Clock::now()));
}

std::string http_get(const HttpAddress& address, const std::string& path) {
  asio::io_context io;
  HttpClient client(io, address);
  const auto get = [&]() -> asio::awaitable<std::string> {
    if (!co_await client.connect()) co_return "";
    auto message = client.request(http::verb::get, path, "");
    boost::beast::flat_buffer buffer;
    http::response<http::string_body> response;
    if (const auto [error, bytes] = co_await http::async_write(client.stream(), message, outcome); error) co_return "";
    if (const auto [error, bytes] = co_await http::async_read(client.stream(), buffer, response, outcome); error)
      co_return "";
    co_return response.result_int() == 200 ? response.body() : "";
  };
  std::string body = run_alone(io, get());
  if (body.empty()) throw Error(ErrorKind::device, "{} of the server at port {} is not answered", path, address.port);
  return body;
}

std::map<std::string, double> read_metrics(const HttpAddress& address) {
  std::map<std::string, double> values;
  std::istringstream lines(http_get(address, "/metrics"));
  for (std::string line; std::getline(lines, line);)
    if (const size_t space = line.find(' '); !line.starts_with('#') && space != std::string::npos)
      values[line.substr(0, space)] = std::atof(line.c_str() + space + 1);
  return values;
}

} // namespace fvlm::bench
