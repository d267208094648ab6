#include "bench/mixed_load.h"

#include "base/base64.h"
#include "base/interrupt.h"
#include "base/random.h"
#include "base/table.h"
#include "bench/http_client.h"
#include "bench/load_prompts.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <set>
#include <thread>

namespace fvlm::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr double most_growth = 0.02;
constexpr double long_pause = 2; // seconds; fewer than the server's --idle
constexpr int64_t warm_up = 120; // seconds at least, and as many behind them until memory is judged
constexpr size_t max_problems = 20;

std::string post(const std::string& body, const std::string& more = "") {
  return fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}"
                     "Content-Length: {}\r\n\r\n{}",
                     more, body.size(), body);
}

std::string chat(const std::string& content, const Json& more = Json::object()) {
  Json body = {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}, {"max_tokens", 4}};
  body.update(more);
  return body.dump();
}

std::string with_picture(const std::string& url) {
  return Json{
      {"messages", Json::array({{{"role", "user"},
                                 {"content", Json::array({{{"type", "image_url"}, {"image_url", {{"url", url}}}},
                                                          {{"type", "text"}, {"text", "what"}}})}}})},
      {"max_tokens", 4}}
      .dump();
}

std::vector<std::string> malformed_requests() {
  const std::string picture = made_picture(0, 0, 64), deep(1000, '[');
  return {"NONSENSE\r\n\r\n",
          "GET /health HTTP/1.1\r\n\r\n",
          "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
          "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
          "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
          "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
          "GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
          post("{"),
          post("[]"),
          post(deep),
          post("{\"messages\": \"\xff\xfe\"}"),
          post(chat("hello", {{"temperature", -1}})),
          post(chat("hello", {{"max_tokens", 1e300}})),
          post(chat("hello", {{"top_p", 0}})),
          post(with_picture("file:///etc/passwd")),
          post(with_picture("data:image/png;base64,$$$")),
          post(with_picture("data:image/jpeg;base64," + encode_base64(picture.substr(0, 300)))),
          post(chat("hello"), "Origin: https://evil.example\r\n")};
}

std::vector<std::string> enormous_requests() {
  const std::string mebibyte(size_t{1} << 20, 'a');
  std::string text, words;
  for (int i = 0; i < 24; ++i) text += mebibyte;
  for (int i = 0; i < 100'000; ++i) words += " cat";
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0", 29); // 60,000 pixels a side
  return {"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
          "Content-Length: 10000000000\r\n\r\n{",
          fmt::format("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", mebibyte.substr(0, 64 << 10)),
          post(chat(text)),
          post(chat(words)),
          post(with_picture("data:image/png;base64," + encode_base64(png))),
          post(Json(std::vector<std::string>(1 << 20, "x")).dump())};
}

class MixedLoad {
 public:
  MixedLoad(const ServerProcess& server, double seconds, uint64_t seed, const Progress& progress)
      : server_(server), seconds_(seconds), random_(seed, "mixed load"), progress_(progress) {}

  MixedReport run() {
    const LoadPrompts prompts{12, 24, 0.5, 96, 0, 7};
    for (int64_t i = 0; i < 16; ++i) {
      good_.push_back(load_request(prompts, i));
      const LoadResult alone = ask_once(server_.address(), good_.back());
      if (!alone.problem.empty()) note("a good request alone: " + alone.problem);
      expected_.push_back(alone.text);
    }
    asio::signal_set signals(io_, SIGINT, SIGTERM);
    signals.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      interrupted_ = number;
      io_.stop();
    });
    nonsense_ = malformed_requests();
    enormous_ = enormous_requests();
    start_ = Clock::now();
    const auto start_clients = [&](int count, auto client) {
      for (int i = 0; i < count; ++i) {
        ++active_;
        asio::co_spawn(io_, (this->*client)(), [this, &signals](std::exception_ptr error) {
          if (error) std::rethrow_exception(error);
          if (--active_ == 0) signals.cancel();
        });
      }
    };
    start_clients(4, &MixedLoad::be_good);
    start_clients(4, &MixedLoad::vanish);
    start_clients(2, &MixedLoad::send_nonsense);
    start_clients(1, &MixedLoad::send_too_much);
    start_clients(2, &MixedLoad::read_slowly);
    start_clients(2, &MixedLoad::write_slowly);
    start_clients(1, &MixedLoad::watch);
    start_clients(1, &MixedLoad::take_turns);
    io_.run();
    if (interrupted_ != 0) throw Interrupted(interrupted_);
    count_pages();
    if (const double growth = report_.growth(); growth > most_growth)
      note(fmt::format("the server's memory grew by {:.1f} %", 100 * growth));
    return std::move(report_);
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool goes_on() const { return elapsed() < seconds_; }
  double draw() { return random_.uniform(draws_++); }
  int64_t draw(int64_t below) { return static_cast<int64_t>(draw() * static_cast<double>(below)); }
  void note(std::string problem) {
    if (report_.problems.size() < max_problems) report_.problems.push_back(std::move(problem));
  }

  asio::awaitable<void> pause(double seconds) {
    asio::steady_timer timer(io_, std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
    co_await timer.async_wait(outcome);
  }

  // On a busy machine this process may get no time to run. Then the server rightly closes connections on which nothing
  // was sent or read for as long as --idle, which is no problem of its own.
  asio::awaitable<void> take_turns() {
    for (; goes_on(); co_await pause(0.1)) {
      if (stands_still()) last_pause_ = elapsed();
      last_turn_ = elapsed();
    }
  }
  bool stands_still() const { return elapsed() - last_turn_ > long_pause; }

  asio::awaitable<void> be_good() {
    HttpClient client(io_, server_.address());
    double last_request = 0;
    while (goes_on()) {
      const auto which = static_cast<size_t>(draw(std::ssize(good_)));
      const LoadResult result = co_await client.ask(good_[which], start_);
      const bool was_late = result.is_cut_off && (stands_still() || last_pause_ > last_request);
      last_request = result.sent;
      if (was_late) {
        ++report_.clients["good, but late themselves"];
        continue;
      }
      ++report_.clients["good requests"];
      if (!result.problem.empty())
        note("a good request: " + result.problem);
      else if (result.text != expected_[which])
        note(fmt::format("a good request was answered '{}', and alone '{}'", result.text, expected_[which]));
    }
  }

  // Leaves in the middle of its request or of its answer, with a reset or without.
  asio::awaitable<void> vanish() {
    const std::string request = post(chat("tell a story of the old man and the sea",
                                          {{"max_tokens", 300}, {"n", 4}, {"stream", true}, {"temperature", 1.5}}));
    while (goes_on()) {
      HttpClient client(io_, server_.address());
      if (co_await client.connect()) {
        const bool is_cut = draw() < 0.2;
        const auto sent = is_cut ? static_cast<size_t>(draw(std::ssize(request))) : request.size();
        client.stream().expires_after(std::chrono::seconds(60));
        co_await asio::async_write(client.stream(), asio::buffer(request.data(), sent), outcome);
        std::vector<char> read(static_cast<size_t>(1 + draw(20'000)));
        if (!is_cut) co_await asio::async_read(client.stream(), asio::buffer(read), outcome);
        boost::system::error_code ignored;
        if (draw() < 0.5) client.stream().socket().set_option(asio::socket_base::linger(true, 0), ignored);
      }
      ++report_.clients["vanished"];
      co_await pause(0.05 * draw());
    }
  }

  asio::awaitable<void> expect_refusal(const std::string& request, const char* kind) {
    static const std::set<int> refusals = {0, 400, 403, 404, 405, 413, 415, 421, 431, 503};
    HttpClient client(io_, server_.address());
    const int status = co_await client.send_raw(request);
    ++report_.clients[kind];
    if (!refusals.contains(status)) note(fmt::format("{}: status {} for {}", kind, status, request.substr(0, 200)));
  }

  asio::awaitable<void> send_nonsense() {
    while (goes_on()) {
      co_await expect_refusal(nonsense_[static_cast<size_t>(draw(std::ssize(nonsense_)))], "malformed");
      co_await pause(0.1 * draw());
    }
  }

  asio::awaitable<void> send_too_much() {
    while (goes_on()) {
      co_await expect_refusal(enormous_[static_cast<size_t>(draw(std::ssize(enormous_)))], "enormous");
      co_await pause(2 * draw());
    }
  }

  asio::awaitable<void> read_slowly() {
    const std::string request =
        post(chat("what is this", {{"max_tokens", 400}, {"n", 2}, {"stream", true}, {"temperature", 1}}));
    while (goes_on()) {
      HttpClient client(io_, server_.address());
      if (co_await client.connect()) {
        boost::system::error_code ignored;
        client.stream().socket().set_option(asio::socket_base::receive_buffer_size(4096), ignored);
        client.stream().expires_after(std::chrono::seconds(60));
        co_await asio::async_write(client.stream(), asio::buffer(request), outcome);
        std::array<char, 256> piece;
        for (int reads = 0; reads < 40 && goes_on(); ++reads) {
          // The system may forget a connection that the server has closed while nothing more fitted in, and say
          // nothing.
          client.stream().expires_after(std::chrono::seconds(60));
          const auto [error, bytes] = co_await client.stream().async_read_some(asio::buffer(piece), outcome);
          if (error) break;
          co_await pause(0.3);
        }
      }
      ++report_.clients["slow readers"];
    }
  }

  // A letter at a time, until the server has enough.
  asio::awaitable<void> write_slowly() {
    const std::string request = post(chat("hello"));
    while (goes_on()) {
      HttpClient client(io_, server_.address());
      if (co_await client.connect()) {
        client.stream().expires_never();
        for (size_t at = 0; at < request.size() && goes_on(); ++at) {
          const auto [error, bytes] =
              co_await asio::async_write(client.stream(), asio::buffer(request.data() + at, 1), outcome);
          if (error) break;
          co_await pause(0.2);
        }
      }
      ++report_.clients["slow writers"];
    }
  }

  asio::awaitable<void> watch() {
    while (goes_on()) {
      report_.memory.push_back({elapsed(), server_.resident_bytes()});
      if (report_.memory.back().bytes == 0) {
        note("the server ended: " + server_.log());
        io_.stop();
        co_return;
      }
      progress_(fmt::format("mixed load, {} MiB", report_.memory.back().bytes >> 20), static_cast<int64_t>(elapsed()),
                static_cast<int64_t>(seconds_));
      co_await pause(1);
    }
  }

  // Behind the last request: the pages that nobody uses have to be all.
  void count_pages() {
    if (!report_.memory.empty() && report_.memory.back().bytes == 0) return; // it has ended
    auto now = read_metrics(server_.address());
    for (int wait = 0; wait < 600 && now["fvlm_requests_running"] + now["fvlm_requests_waiting"] > 0; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      now = read_metrics(server_.address());
    }
    const auto count = [&](const char* name) { return std::llround(now[name]); };
    report_.pages = count("fvlm_cache_pages");
    report_.free_pages = count("fvlm_cache_pages_free");
    report_.cached_pages = count("fvlm_cache_pages_cached");
    if (const int64_t requests = count("fvlm_requests_running") + count("fvlm_requests_waiting"); requests != 0)
      note(fmt::format("{} requests are still there, whose clients are not", requests));
    if (const int64_t lost = report_.pages - report_.free_pages - report_.cached_pages; lost != 0)
      note(fmt::format("{} of {} pages are lost", lost, report_.pages));
    for (size_t i = 0; i < good_.size(); ++i)
      if (const LoadResult again = ask_once(server_.address(), good_[i]); again.text != expected_[i])
        note(fmt::format("afterwards a good request was answered '{}', and before '{}' {}", again.text, expected_[i],
                         again.problem));
  }

  const ServerProcess& server_;
  double seconds_;
  RandomStream random_;
  uint64_t draws_ = 0;
  const Progress& progress_;
  asio::io_context io_{1};
  Clock::time_point start_;
  std::vector<std::string> good_, expected_, nonsense_, enormous_;
  double last_turn_ = 0, last_pause_ = 0; // of this process, seconds since the start
  int active_ = 0, interrupted_ = 0;
  MixedReport report_;
};

} // namespace

double MixedReport::growth() const {
  const auto behind = static_cast<size_t>(std::max<int64_t>(warm_up, std::ssize(memory) / 5));
  if (std::ssize(memory) < static_cast<int64_t>(behind) + warm_up) return 0;
  const size_t window = (memory.size() - behind) / 4;
  const auto median = [&](size_t begin) {
    std::vector<int64_t> bytes;
    for (size_t i = begin; i < begin + window; ++i) bytes.push_back(memory[i].bytes);
    std::nth_element(bytes.begin(), bytes.begin() + std::ssize(bytes) / 2, bytes.end());
    return static_cast<double>(bytes[bytes.size() / 2]);
  };
  return median(memory.size() - window) / median(behind) - 1;
}

std::string MixedReport::text() const {
  TextTable table({"minute", "resident MiB"});
  for (size_t point = 0; point <= 10 && !memory.empty(); ++point) {
    const Memory& at = memory[point * (memory.size() - 1) / 10];
    table.row({fmt::format("{:.1f}", at.seconds / 60), fmt::format("{:.1f}", static_cast<double>(at.bytes) / 1048576)});
  }
  std::string text = table.text() + fmt::format("\ngrowth behind the warm-up: {:.2f} %\n", 100 * growth());
  for (const auto& [kind, count] : clients) text += fmt::format("{}: {}\n", kind, count);
  return text + fmt::format("of {} pages {} free and {} cached\n", pages, free_pages, cached_pages);
}

nlohmann::ordered_json MixedReport::json() const {
  nlohmann::ordered_json seconds = nlohmann::ordered_json::array(), bytes = seconds;
  for (const Memory& at : memory) seconds.push_back(at.seconds), bytes.push_back(at.bytes);
  return {{"seconds", seconds}, {"resident_bytes", bytes},  {"growth", growth()},           {"requests", clients},
          {"pages", pages},     {"free_pages", free_pages}, {"cached_pages", cached_pages}, {"problems", problems}};
}

MixedReport run_mixed_load(const ServerProcess& server, double seconds, uint64_t seed, const Progress& progress) {
  return MixedLoad(server, seconds, seed, progress).run();
}

} // namespace fvlm::bench
